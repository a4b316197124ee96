"""What the ranks of an observed script left -> the outcome of its attempt."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench import backends
from bench.diagnosis import oom_words
from bench.diagnosis.classify import classify
from bench.diagnosis.script_end import failure
from bench.imported.script import read_result
from bench.launch.executor import LaunchResult
from bench.launch.script_launch import result_file
from bench.records.cell import Attempt
from bench.records.machine import Hardware, Machine
from bench.records.observed import by_rank, other_batch, other_steps, skipped
from bench.records.outcome import Failed, Outcome
from bench.records.phases import Stage
from bench.records.precision import COMPUTES_IN
from bench.records.rank_outcome import RankError, RankKilled, RankOk, RankOom, RankOutcome
from bench.records.script import ScriptEnd
from bench.store.beats import last_stage
from bench.units import counted

NOT_SEEN = (
    "bench saw no step in it: it looked for optimizers of torch.optim that step, and for DeepSpeed's engine, in every"
    " Python process of the command that reads PYTHONPATH; have the script report its figures instead, with result:"
)


MOST_RESTARTS = 5
"""A GAN has one, and an optimizer for each parameter begins anew within its first step."""


def observed_outcome(
    launched: LaunchResult,
    end: ScriptEnd,
    killer: str | None,
    attempt: Attempt,
    folder: Path,
    machine: Machine,
    note: Callable[[str], None],
) -> Outcome:
    """The outcome of an observed attempt.

    Args:
        killer: the kernel's out-of-memory killer, in words, if it ended a process meanwhile.
    """
    ranks = [*map(_with_reason, launched.ranks), *_killed({rank.rank for rank in launched.ranks}, end, killer, folder)]
    measured = [rank for rank in ranks if isinstance(rank, RankOk)]
    if measured and len(measured) == measured[0].regime.world_size:
        return _checked(measured, attempt, note)
    failed = [rank for rank in ranks if not isinstance(rank, RankOk)]
    stuck = launched.cancelled is not None and launched.stuck
    idle = (
        [n for n in range(measured[0].regime.world_size) if not any(folder.glob(f"rank{n}.trainer.*"))]
        if measured
        else []
    )
    if idle and not stuck and _failed_after(measured, failed, folder):
        reason = f"rank {idle[0]} made no optimizer step, and bench measures scripts in which every rank does"
        return Failed(fault="regime", rank=idle[0], phase=None, reason=f"{reason}: state its figures with result:")
    if failed or stuck:
        size = attempt.cell.num_processes
        return classify(ranks, world_size=size, cancelled=launched.cancelled, stuck=launched.stuck)
    if end.finished and not measured:
        assert isinstance(machine.hardware, Hardware)  # bench runs on it
        assert attempt.cell.script is not None
        if result_file(attempt.cell.script, folder).exists():  # of a Trainer that ended before it was measured
            read = read_result(result_file(attempt.cell.script, folder), attempt, machine.hardware)
            if not isinstance(read, str):
                return read.figures
    return failure(end, _too_short(attempt, folder) or NOT_SEEN, killer)


def _checked(ranks: list[RankOk], attempt: Attempt, note: Callable[[str], None]) -> Outcome:
    """The measured ranks, unless they are not what the attempt asked for; what else is otherwise becomes a note."""
    cell, world_size = attempt.cell, len(ranks)
    if world_size != cell.num_processes:
        reason = (
            f"the script trained in {counted(world_size, 'process')}, and the matrix says {cell.num_processes}: put"
            f" {{num_processes}} into the command, or set launch.num_processes: {world_size}"
        )
        return Failed(fault="regime", rank=None, phase=None, reason=reason)
    if unlike := list(_unlike(ranks[0], attempt)):
        return Failed(fault="regime", rank=0, phase=None, reason="the script ran otherwise: " + "; ".join(unlike))
    told = {}
    for rank in ranks:
        assert rank.observed is not None
        asked = len(rank.step_times_s), attempt.batch_per_rank, attempt.samples_of_rank(1)
        told[rank.rank] = [
            *other_batch(rank.observed, *asked),
            *other_steps(rank.observed, *asked),
            *skipped(rank.observed, asked[0]),
        ]
    for words in by_rank(told):
        note(f"batch {attempt.batch_per_rank}, {words}; figures count what was seen")
    return classify(ranks, world_size=world_size)


def _unlike(rank: RankOk, attempt: Attempt) -> Iterator[str]:
    """Settings that the script was handed, and did not follow."""
    cell, regime = attempt.cell, rank.regime
    assert cell.script is not None
    if cell.script.uses("backend", "accelerate_config"):
        wanted = backends.backend_of(cell).sharding
        alone = cell.num_processes == 1
        if not alone and regime.sharding != wanted:
            yield f"{cell.backend} shards with {wanted}, observed {regime.sharding}"
        elif not alone and wanted == "none" and regime.distributed_type == "NO":
            yield f"{cell.backend} wraps the model in DistributedDataParallel, observed no wrapper"
    low = COMPUTES_IN.get(cell.mixed_precision or "")
    if cell.script.uses("mixed_precision") and low and regime.matmul_dtype not in (None, low):
        yield f"mixed_precision {cell.mixed_precision} multiplies in {low}, observed {regime.matmul_dtype}"


def _failed_after(measured: Sequence[RankOk], failed: Sequence[RankOutcome], folder: Path) -> bool:
    """Whether errors are no cause: a measured rank had ended, and its connections with it."""
    ended = min((folder / f"rank{rank.rank}.json").stat().st_mtime for rank in measured)
    return all(isinstance(rank, RankError) and rank.at >= ended for rank in failed)


def _too_short(attempt: Attempt, folder: Path) -> str | None:
    early = sorted(folder.glob("rank*.early"))
    if not early:  # it left no time to say so, as with os._exit
        stage = last_stage(folder, 0)
        ended = f"the script ended in {stage}, before all steps were measured: have it train longer"
        return ended if stage in (Stage.WARMUP, Stage.MEASURE) else None
    ended = min((json.loads(file.read_text()) for file in early), key=lambda one: int(one["steps"]))
    if ended["restarts"] > MOST_RESTARTS:
        return (
            f"its optimizers changed {ended['restarts']} times, as new ones or after a rest of 64 steps of another, and"
            f" bench counts steps anew then: it never saw {ended['warmup'] + attempt.measure.steps} in a row. State its"
            " figures with result:, see `bench guide script-results`"
        )
    return (
        f"the script ended after {counted(ended['steps'], 'step')}, and {ended['warmup'] + attempt.measure.steps} are"
        f" needed, {ended['warmup']} of them to warm up: have it train longer, or lower measure.steps"
    )


def _killed(reported: set[int], end: ScriptEnd, killer: str | None, folder: Path) -> Iterator[RankOutcome]:
    """The rank that a signal ended, as the launcher's log has it: it could not report that itself."""
    if end.signal is None or end.rank is None or end.rank in reported:
        return
    phase = last_stage(folder, end.rank)
    if end.signal == "SIGKILL" and killer is not None:
        yield RankOom(rank=end.rank, phase=phase, message=f"killed by {killer}", at=0.0, source="kernel")
    else:
        yield RankKilled(rank=end.rank, phase=phase, signal=end.signal, at=0.0)


def _with_reason(rank: RankOutcome) -> RankOutcome:
    """An error that says that memory ran out, as such."""
    if not isinstance(rank, RankError):
        return rank
    if (found := oom_words.find(rank.error, rank.traceback)) is None:
        return rank
    kind, match = found
    return RankOom(
        rank=rank.rank,
        phase=rank.phase,
        message=match[0][:1000],
        at=rank.at,
        source=kind,
        bytes_asked=oom_words.bytes_asked(match[0]),
    )
