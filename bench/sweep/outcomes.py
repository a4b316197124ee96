"""What a launch left -> the outcome of its attempt; and the settings that a script was handed."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from bench.diagnosis.classify import classify, reclassify_host_oom
from bench.diagnosis.oom_words import end_for_memory
from bench.diagnosis.script_end import aborted_at_exit, failure
from bench.imported.script import read_result
from bench.launch.executor import LaunchResult
from bench.launch.script_launch import result_file
from bench.machine import has_own_memory, oom_kill
from bench.matrix.script import OBSERVED_SETTINGS, OF_BENCH
from bench.records.cell import Attempt, Cell
from bench.records.machine import Hardware, Machine, StatedHardware
from bench.records.outcome import SETTINGS, Failed, Isolation, Outcome, Result
from bench.records.plan import CellPlan
from bench.records.rank_outcome import RankKilled, RankOom, RankOutcome
from bench.records.script import ScriptEnd
from bench.records.sources import Sources
from bench.sweep.observed import observed_outcome


def outcome_of(launched: LaunchResult, cell: Cell, hardware: Hardware | StatedHardware) -> Outcome:
    """The outcome of an attempt of ``cell``."""
    outcome = classify(
        launched.ranks,
        world_size=cell.num_processes,
        cancelled=launched.cancelled,
        stuck=launched.stuck,
        launcher_error=launched.launcher_error,
    )
    return reclassify_host_oom(outcome, separate_memory=has_own_memory(hardware))


def outcome_of_attempt(
    launched: LaunchResult,
    kills: oom_kill.Counts,
    attempt: Attempt,
    folder: Path,
    machine: Machine,
    label: str,
    note: Callable[[str], None],
) -> Outcome:
    """The outcome of ``attempt``, of bench's own ranks or of a script.

    Args:
        kills: of the kernel's out-of-memory killer, as it was before the launch.
        folder: of the attempt's files.
        label: of its cell.
        note: receives what the user should know of a script.
    """
    killer = oom_kill.killed_since(kills)
    if launched.script is None:
        if launched.isolation == "launch":  # a rank server tells the ends of its own
            launched = replace(launched, ranks=[_with_cause(rank, killer) for rank in launched.ranks])
        return outcome_of(launched, attempt.cell, machine.hardware)
    if attempt.cell.script is not None and attempt.cell.script.is_observed:

        def of_cell(text: str) -> None:  # other cells may have done the same
            note(f"{label}, {text}" if label else text)

        outcome = observed_outcome(launched, launched.script, killer, attempt, folder, machine, of_cell)
    else:
        outcome = _stated_outcome(launched.script, killer, attempt, folder, machine, note)
    return reclassify_host_oom(outcome, separate_memory=has_own_memory(machine.hardware))


def _with_cause(rank: RankOutcome, killer: str | None) -> RankOutcome:
    """The report on a rank, with what ran out of memory if that ended it."""
    if not isinstance(rank, RankKilled) or rank.by_bench:
        return rank
    if (found := end_for_memory(rank.signal, killer, rank.last_words or "")) is None:
        return rank
    return RankOom(rank=rank.rank, phase=rank.phase, message=found[1], source=found[0], at=rank.at)


def result_of(
    plan: CellPlan,
    attempt: Attempt,
    outcome: Outcome,
    machine: Machine,
    started: datetime | None = None,
    wall_s: float = 0.0,
    isolation: Isolation | None = None,
    sources: Sources | None = None,
) -> Result:
    """What is stored of an attempt; by default, of one for which nothing was launched."""
    return Result(
        attempt=attempt,
        axes=plan.axes,
        outcome=outcome,
        machine=machine,
        isolation=isolation,
        started_at=(started or datetime.now(UTC)).isoformat(timespec="seconds"),
        wall_s=wall_s,
        stated=script_settings(attempt.cell),
        sources=sources,
    )


def given_up(lost: list[str]) -> Failed:
    """The outcome of an attempt whose machine went away each time that it was tried."""
    return Failed(fault="infrastructure", rank=None, phase=None, reason=lost[-1])


def _stated_outcome(
    end: ScriptEnd, killer: str | None, attempt: Attempt, folder: Path, machine: Machine, note: Callable[[str], None]
) -> Outcome:
    """The figures of a script that ended well and wrote them; else what went wrong."""
    assert isinstance(machine.hardware, Hardware)  # bench runs on it
    assert attempt.cell.script is not None
    read = read_result(result_file(attempt.cell.script, folder), attempt, machine.hardware)
    if isinstance(read, str):
        return failure(end, read, killer)
    if aborted_at_exit(end):
        note("torch aborted the script as Python ended; its result was whole by then, and counts")
    elif not end.finished:
        return failure(end, "", killer)
    if read.not_read:
        note(f"the script's result has keys that bench does not read: {', '.join(read.not_read)}")
    return read.figures


def script_settings(cell: Cell) -> tuple[str, ...] | None:
    """The settings that a cell's script gets, or that bench enforces on it; None for a cell of bench's runner."""
    if cell.script is None:
        return None
    script, given = cell.script, ["memory_limit_bytes", *(OBSERVED_SETTINGS if cell.script.is_observed else ())]
    given += ["global_batch"] if cell.train.global_batch else []
    return tuple(name for name in SETTINGS if name in given or script.uses(*OF_BENCH.get(name, (name,))))
