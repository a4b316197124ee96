"""A sweep: cells -> attempts -> outcomes -> store. `Sweep.run` is the whole data flow."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, get_args

from pydantic import ValidationError

from bench import backends
from bench.diagnosis.classify import classify
from bench.launch import attempt_files
from bench.launch.environment import added_environment
from bench.launch.local import Executor, LaunchResult
from bench.launch.watch import Limits
from bench.machine import disk
from bench.machine.conditions import Sampler
from bench.records.cell import Attempt, Audit, Cell, Walk
from bench.records.conditions import Conditions
from bench.records.machine import Hardware, Machine
from bench.records.outcome import INFRASTRUCTURE, KINDS, Failed, Isolation, Outcome, Result, Skipped
from bench.records.phases import Stage
from bench.records.plan import CellPlan
from bench.records.sources import Sources, differing, named
from bench.records.verdict import Goal
from bench.store import spool
from bench.store.run_folder import Store
from bench.store.spool import Beat
from bench.sweep import probe
from bench.sweep.progress import Progress
from bench.units import counted

Rerun = Literal["failed", "oom", "all"]
RERUN_KINDS = {word: {kind for kind, traits in KINDS.items() if word in traits.rerun} for word in get_args(Rerun)}


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What to measure, where to store it, and the executor that runs the ranks."""

    plans: Sequence[CellPlan]
    goal: Goal
    """Of the search, for cells whose batch is `probe`."""
    units: tuple[str, ...]
    """Class names of the workload's modules that are sharded as one."""
    machine: Machine
    limits: Limits
    rerun: Rerun | None
    store: Store
    executor: Executor
    progress: Progress
    beside: Sampler
    """Records what else the machine does."""
    sources: Sources | None = None
    """What the ranks run; None where that is not known."""
    keep_stale: bool = False
    """Keep stored results that other sources made."""
    done: set[Path] = field(default_factory=set, init=False)
    """Folders of the attempts that this sweep has finished; `--rerun` does not measure them again."""

    def run(self) -> list[Result]:
        """Measure what is not measured yet; each result is stored before the next attempt starts.

        Returns:
            The results of all attempts of the sweep, old and new, in the matrix's order.
        """
        for plan in self.plans:
            before: list[Result] = []  # of this cell only: a run of thousands of attempts does not grow
            for batch in plan.batches:
                if batch == "probe":
                    probe.CellSearch(self, plan).run()
                else:
                    before.append(self.attempt(plan, Attempt(cell=plan.cell, batch_per_rank=batch), before))
        return [result for plan in self.plans for result in self._results(plan)]

    def _results(self, plan: CellPlan) -> list[Result]:
        if "probe" in plan.batches:
            return self.store.of_cell(plan.cell)
        listed = (Attempt(cell=plan.cell, batch_per_rank=batch) for batch in plan.batches if batch != "probe")
        return [result for attempt in listed if (result := self.store.result(attempt)) is not None]

    def finished(self) -> int:
        """How many of the listed attempts are stored already. A search counts its stored attempts when it runs."""
        listed = (
            self.stored(Attempt(cell=plan.cell, batch_per_rank=batch))
            for plan in self.plans
            for batch in plan.batches
            if batch != "probe"
        )
        return sum(result is not None for result in listed)

    def prepare(self) -> None:
        """Start ranks for the first cell that may need them, without waiting: their imports take seconds."""
        first = next((plan.cell for plan in self.plans if self._needs_ranks(plan)), None)
        if first is not None:
            self.executor.prepare(first.num_processes)

    def _needs_ranks(self, plan: CellPlan) -> bool:
        """Whether an attempt is not stored, or a search has no verdict."""
        if backends.forbids(plan.cell, self.machine.hardware.device):
            return False
        if "probe" in plan.batches and (
            self.rerun or self.store.probe(plan.cell) is None or any(map(self.is_stale, self.store.of_cell(plan.cell)))
        ):
            return True
        listed = (Attempt(cell=plan.cell, batch_per_rank=batch) for batch in plan.batches if batch != "probe")
        return any(not self._was_skipped(attempt) and self.stored(attempt) is None for attempt in listed)

    def _was_skipped(self, attempt: Attempt) -> bool:
        result = self.store.result(attempt)
        return result is not None and result.outcome.kind == "skipped"

    def failed_before(self) -> list[str]:
        """A sentence on the stored attempts that failed, and how to measure them again; none if there are none."""
        stored = [
            result for plan in self.plans for result in self.store.of_cell(plan.cell) if self.stored(result.attempt)
        ]
        failed = sum(result.outcome.kind in RERUN_KINDS["failed"] for result in stored)
        words = f"{counted(failed, 'stored attempt')} failed or hung: --rerun failed measures them again"
        return [words] if failed else []

    def stale_before(self) -> list[str]:
        """A sentence on the stored results that other sources made; none if there are none."""
        stored = [result for plan in self.plans for result in self._results(plan)]
        stale = [files for result in stored if (files := self._changed(result))]
        if not stale:
            return []
        words = f"{counted(len(stale), 'stored result')} {'was' if len(stale) == 1 else 'were'} made by other sources"
        changed = named({file for files in stale for file in files})
        then = "kept, and marked in the report" if self.keep_stale else "measured again; --keep-stale keeps them"
        return [f"{words} ({changed} changed): {then}"]

    def unreadable(self) -> list[str]:
        """A sentence on each stored file of these cells that cannot be read."""
        for plan in self.plans:
            self.store.of_cell(plan.cell)
            self.store.probe(plan.cell)
        return [
            f"{file.relative_to(self.store.root)} cannot be read ({why}): "
            + ("written again" if file.name == "run.json" else "its attempt is measured again")
            for file, why in self.store.unreadable.items()
        ]

    def attempt(self, plan: CellPlan, attempt: Attempt, before: Sequence[Result]) -> Result:
        """The attempt's result: stored, skipped because of the results ``before`` it in its cell, or measured now."""
        if result := self.stored(attempt):
            return result
        if reason := self._reason_to_skip(attempt, before):
            result = self._skip(plan, attempt, reason)
        else:
            result = self._measure(plan, attempt)
        self.store.finish(result)
        self.done.add(self.store.folder(attempt))
        self.progress.result(plan.label, result)
        return result

    def stored(self, attempt: Attempt) -> Result | None:
        """The stored result of ``attempt``; None when it is to be measured, again or for the first time."""
        result = self.store.result(attempt)
        if (
            result is None
            or result.outcome.kind == "skipped"
            or self.wants_again(result)
            or _deserves_another_try(result)
        ):
            return None
        return result

    def wants_again(self, result: Result) -> bool:
        """Whether ``--rerun`` or changed sources ask for another measurement of a stored result, and this sweep has not
        made it yet."""
        kinds = RERUN_KINDS[self.rerun] if self.rerun else set()
        again = result.outcome.kind in kinds or self.is_stale(result)
        return again and self.store.folder(result.attempt) not in self.done

    def is_stale(self, result: Result) -> bool:
        """Whether other sources made a stored result, and it is not kept."""
        return not self.keep_stale and bool(self._changed(result))

    def _changed(self, result: Result) -> tuple[str, ...]:
        """The source files that changed since the result; none where either side is not known."""
        return differing(result.sources, self.sources) if result.sources and self.sources else ()

    def _reason_to_skip(self, attempt: Attempt, before: Sequence[Result]) -> str | None:
        """Its backend forbids the attempt, or a smaller batch of the cell ran out of memory."""
        if reason := backends.forbids(attempt.cell, self.machine.hardware.device):
            return reason
        for result in before:
            if result.outcome.kind == "oom":
                return f"stopped early: batch {result.attempt.batch_per_rank} ran out of memory"
        return None

    def _skip(self, plan: CellPlan, attempt: Attempt, reason: str) -> Result:
        outcome, before = Skipped(reason=reason), self.store.result(attempt)
        if before is not None and before.outcome == outcome:
            return before
        self.store.begin(attempt)
        return self._result(plan, attempt, outcome, datetime.now(UTC), 0.0, None)

    def _measure(self, plan: CellPlan, attempt: Attempt) -> Result:
        """Try once, and a second time if the machine caused the failure, not the attempt."""
        result = self._try(plan, attempt)
        if not _deserves_another_try(result):
            return result
        assert isinstance(result.outcome, Failed)
        first = f"{result.outcome.fault}: {result.outcome.reason}"
        self.store.finish(result)  # the second try sets it aside
        self.progress.note(f"{plan.label}, batch {attempt.batch_per_rank}: retrying after {first}")
        return self._try(plan, attempt).model_copy(update={"retried": first})

    def _try(self, plan: CellPlan, attempt: Attempt) -> Result:
        started, began_s = datetime.now(UTC), time.monotonic()
        self.progress.attempt(plan.label, attempt.batch_per_rank)
        launched, conditions = self.launch(attempt, self.store.begin(attempt).resolve())
        wall_s = time.monotonic() - began_s
        try:
            outcome = outcome_of(launched, attempt.cell)
            result = self._result(plan, attempt, outcome, started, wall_s, launched.isolation)
        except ValidationError as error:  # another program has written to a rank's file
            reason = f"its ranks left invalid result files: {spool.why(error)}"
            outcome = Failed(fault="ended", rank=None, phase=None, reason=reason)
            result = self._result(plan, attempt, outcome, started, wall_s, launched.isolation)
        if result.outcome.kind in ("failed", "hang"):
            disk.check(self.store.root)  # a full disk ends the run here; this attempt stays unfinished
        return result.model_copy(update={"conditions": conditions})

    def launch(self, attempt: Attempt | Walk | Audit, folder: Path) -> tuple[LaunchResult, Conditions]:
        """Write the files of a launch to ``folder``, run its ranks, and record what else the machine did."""
        hardware = self.machine.hardware
        assert isinstance(hardware, Hardware)  # this machine's own
        environment = added_environment(attempt.cell.num_processes, hardware, os.environ)
        for name, text in attempt_files.files(attempt, self.units, hardware.device, environment, str(folder)).items():
            spool.write_text(folder / name, text)
        self.beside.begin()  # for walks and audits too: else the next attempt takes their work for another program's
        launched = self.executor.run(attempt.cell, folder, self.limits, self._on_beat)
        return launched, self.beside.end()

    def _on_beat(self, beat: Beat) -> None:
        if beat.phase == Stage.COMPILE:
            self.progress.waiting("building DeepSpeed's extension, once")
        else:
            self.progress.beat(beat.phase, beat.step, beat.steps)
        self.beside.look(beat.phase)

    def _result(
        self,
        plan: CellPlan,
        attempt: Attempt,
        outcome: Outcome,
        started: datetime,
        wall_s: float,
        isolation: Isolation | None,
    ) -> Result:
        return Result(
            attempt=attempt,
            axes=plan.axes,
            outcome=outcome,
            machine=self.machine,
            isolation=isolation,
            started_at=started.isoformat(timespec="seconds"),
            wall_s=wall_s,
            sources=None if isolation is None else self.sources,
        )


def _deserves_another_try(result: Result) -> bool:
    """Whether the machine caused the failure, and there was no second try yet: bench may have stopped before it."""
    outcome = result.outcome
    return isinstance(outcome, Failed) and outcome.fault in INFRASTRUCTURE and result.retried is None


def outcome_of(launched: LaunchResult, cell: Cell) -> Outcome:
    """The outcome of an attempt of ``cell``."""
    return classify(
        launched.ranks,
        world_size=cell.num_processes,
        cancelled=launched.cancelled,
        stuck=launched.stuck,
        launcher_error=launched.launcher_error,
    )
