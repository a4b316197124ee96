"""The product on one screen: cells -> attempts -> outcomes -> store."""

import json
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
from bench.launch.local import Ended, Executor
from bench.launch.watch import Limits
from bench.machine import disk
from bench.machine.conditions import Sampler
from bench.matrix import CellPlan
from bench.records.cell import Attempt, Audit, Cell, Walk
from bench.records.conditions import Conditions
from bench.records.machine import Hardware, Machine
from bench.records.outcome import INFRASTRUCTURE, KINDS, Failed, Isolation, Outcome, Result, Skipped
from bench.records.rank_outcome import RankOk
from bench.records.verdict import Goal, Probe, Verdict
from bench.store import spool
from bench.store.run_folder import Store
from bench.store.spool import Beat, Walked
from bench.sweep import probe
from bench.sweep.progress import Progress
from bench.units import counted

Rerun = Literal["failed", "oom", "all"]
RERUN_KINDS = {word: {kind for kind, traits in KINDS.items() if word in traits.rerun} for word in get_args(Rerun)}


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What to measure, where to keep it, and who does it."""

    plans: Sequence[CellPlan]
    goal: Goal
    """Of the search, where a batch is `probe`."""
    units: tuple[str, ...]
    """Of the workload: class names of the modules that are sharded as one."""
    machine: Machine
    limits: Limits
    rerun: Rerun | None
    store: Store
    executor: Executor
    progress: Progress
    beside: Sampler
    """Looks at what else the machine does."""
    done: set[Path] = field(default_factory=set, init=False)
    """Folders of the attempts that were measured now, and are not to be measured again."""

    def run(self) -> list[Result]:
        """Measure what is not measured yet; each result is stored before the next attempt starts.

        Returns:
            The results of all attempts of the sweep, old and new, in the matrix's order.
        """
        for plan in self.plans:
            before: list[Result] = []  # of this cell only: a run of thousands of attempts does not grow
            for batch in plan.batches:
                if batch == "probe":
                    self._probe(plan)
                else:
                    before.append(self.attempt(plan, Attempt(cell=plan.cell, batch_per_rank=batch), before))
        return [result for plan in self.plans for result in self._results(plan)]

    def _results(self, plan: CellPlan) -> list[Result]:
        if "probe" in plan.batches:
            return self.store.of_cell(plan.cell)
        listed = (Attempt(cell=plan.cell, batch_per_rank=batch) for batch in plan.batches if batch != "probe")
        return [result for attempt in listed if (result := self.store.result(attempt)) is not None]

    def finished(self) -> int:
        """How many of the listed attempts are stored already. A search goes over what is stored, and counts then."""
        listed = (
            self.stored(Attempt(cell=plan.cell, batch_per_rank=batch))
            for plan in self.plans
            for batch in plan.batches
            if batch != "probe"
        )
        return sum(found is not None for found in listed)

    def failed_before(self) -> list[str]:
        """How many of the stored ones are failures, and what to do, as a sentence."""
        stored = [
            result for plan in self.plans for result in self.store.of_cell(plan.cell) if self.stored(result.attempt)
        ]
        failed = sum(result.outcome.kind in RERUN_KINDS["failed"] for result in stored)
        words = f"{counted(failed, 'stored attempt')} failed or hung: --rerun failed measures what failed again"
        return [words] if failed else []

    def unreadable(self) -> list[str]:
        """What lies there of these cells and counts as nothing, as sentences."""
        for plan in self.plans:
            self.store.of_cell(plan.cell)
            self.store.probe(plan.cell)
        return [
            f"{file.relative_to(self.store.root)} cannot be read ({why}): "
            + ("made anew" if file.name == "run.json" else "it counts as not measured, and is measured again")
            for file, why in self.store.unreadable.items()
        ]

    def attempt(self, plan: CellPlan, attempt: Attempt, before: Sequence[Result]) -> Result:
        """The attempt's result: stored, known by those of its cell ``before`` it, or measured now."""
        if result := self.stored(attempt):
            return result
        if reason := self._known_beforehand(attempt, before):
            result = self._skip(plan, attempt, reason)
        else:
            result = self._measure(plan, attempt)
        self.store.finish(result)
        self.done.add(self.store.folder(attempt))
        self.progress.result(label(plan), result)
        return result

    def stored(self, attempt: Attempt) -> Result | None:
        """What stands for ``attempt``, unless it is to be measured again. A skip is decided anew."""
        result = self.store.result(attempt)
        if result is None or result.outcome.kind == "skipped" or self._again(result) or _deserves_another_try(result):
            return None
        return result

    def _again(self, result: Result) -> bool:
        """Whether what is stored is to be measured again, and was not yet."""
        kinds = RERUN_KINDS[self.rerun] if self.rerun else set()
        return result.outcome.kind in kinds and self.store.folder(result.attempt) not in self.done

    def _known_beforehand(self, attempt: Attempt, before: Sequence[Result]) -> str | None:
        """Why ``attempt`` need not run: its backend forbids it, or a smaller batch of the cell ran out of memory."""
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
        """Once; a second time when the machine, not the attempt, was at fault."""
        result = self._try(plan, attempt)
        if not _deserves_another_try(result):
            return result
        assert isinstance(result.outcome, Failed)
        first = f"{result.outcome.fault}: {result.outcome.reason}"
        self.store.finish(result)  # `begin` sets it aside
        self.progress.note(f"{label(plan)}, batch {attempt.batch_per_rank}: once more after {first}")
        return self._try(plan, attempt).model_copy(update={"retried": first})

    def _try(self, plan: CellPlan, attempt: Attempt) -> Result:
        started, began_s = datetime.now(UTC), time.monotonic()
        self.progress.attempt(label(plan), attempt.batch_per_rank)
        ended, conditions = self.launch(attempt, self.store.begin(attempt).resolve())
        wall_s = time.monotonic() - began_s
        try:
            result = self._result(plan, attempt, outcome_of(ended, attempt.cell), started, wall_s, ended.isolation)
        except ValidationError as error:  # a rank's file is not what bench writes there
            reason = f"what its ranks left cannot be: {spool.why(error)}"
            torn = Failed(fault="ended", rank=None, phase=None, reason=reason)
            result = self._result(plan, attempt, torn, started, wall_s, ended.isolation)
        if result.outcome.kind in ("failed", "hang"):
            disk.check(self.store.root)  # a run without room stops here; this attempt stays unfinished
        return result.model_copy(update={"conditions": conditions})

    def _probe(self, plan: CellPlan) -> None:
        """Search the cell's batch; the verdict is stored beside its attempts."""
        cell, progress, store = plan.cell, self.progress, self.store
        if backends.forbids(cell, self.machine.hardware.device):
            self.attempt(plan, Attempt(cell=cell, batch_per_rank=self.goal.granularity), [])
            return

        def walk(batches: tuple[int, ...]) -> list[Walked]:
            listed = [*map(str, batches)] if len(batches) <= 6 else [*map(str, batches[:3]), f"... up to {batches[-1]}"]
            progress.probing(label(plan), f"walking {', '.join(listed)} in one process")
            way = Walk(cell=cell, batches_per_rank=batches)
            self.launch(way, store.begin(way).resolve())
            return store.walked(cell)

        def attempt(batch: int, full: bool, why: str) -> Result:
            progress.probing(label(plan), f"batch {batch}: {why}")
            return self.attempt(plan, Attempt(cell=cell, batch_per_rank=batch, short=not full), [])

        before = [result for result in store.of_cell(cell) if not self._again(result)]
        found = probe.search(self.goal, self._start(plan), before, store.walked(cell), walk, attempt)
        for result in store.of_cell(cell):  # what an earlier search of the same batches has chosen, and this one not
            if isinstance(found, Verdict) and self._again(result) and self.goal.tries(result.attempt.batch_per_rank):
                store.set_aside(result.attempt)
        needs_bytes = self._needs(cell) if isinstance(found, Verdict) and found.max_batch_per_rank is None else None
        store.finish_probe(Probe(cell=cell, axes=plan.axes, goal=self.goal, found=found, needs_bytes=needs_bytes))
        progress.verdict(label(plan), found, needs_bytes)

    def _needs(self, cell: Cell) -> int | None:
        """Bytes that the smallest batch takes on a CPU when nothing limits it; None when that cannot be tried."""
        if self.machine.hardware.device == "cuda" or cell.memory_limit_bytes is None:
            return None
        known = None if self.rerun else self.store.probe(cell)
        if known is not None and known.goal.granularity == self.goal.granularity and known.needs_bytes is not None:
            return known.needs_bytes
        free = cell.model_copy(update={"memory_limit_bytes": None})
        attempt = Attempt(cell=free, batch_per_rank=self.goal.granularity, short=True)
        ended, _ = self.launch(attempt, self.store.begin(attempt).resolve())
        used = [rank.memory.peak_allocated_bytes for rank in ended.ranks if isinstance(rank, RankOk)]
        return max((peak for peak in used if peak is not None), default=None)

    def _start(self, plan: CellPlan) -> int | None:
        """The max of the nearest cell before this one."""
        cells = [other.cell for other in self.plans]
        for cell in reversed(cells[: cells.index(plan.cell)]):
            known = self.store.probe(cell)
            if known is not None and isinstance(known.found, Verdict):
                return known.found.max_batch_per_rank
        return None

    def launch(self, attempt: Attempt | Walk | Audit, folder: Path) -> tuple[Ended, Conditions]:
        """Prepare ``folder``, and run ranks in it until all have ended; with what the machine did beside them."""
        hardware = self.machine.hardware
        assert isinstance(hardware, Hardware)  # this machine's own
        environment = backends.environment(attempt.cell.num_processes, hardware, os.environ)
        for name, text in attempt_files.files(attempt, self.units, hardware.device, environment, str(folder)).items():
            spool.write_text(folder / name, text)
        self.beside.begin()  # of each launch: what one does must not be taken for another's doing before the next
        ended = self.executor.run(attempt.cell, folder, self.limits, self._on_beat)
        return ended, self.beside.end()

    def _on_beat(self, beat: Beat) -> None:
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
        )


def _deserves_another_try(result: Result) -> bool:
    """The machine, not the attempt, was at fault, and there was no second try; bench may have ended before it."""
    outcome = result.outcome
    return isinstance(outcome, Failed) and outcome.fault in INFRASTRUCTURE and result.retried is None


def outcome_of(ended: Ended, cell: Cell) -> Outcome:
    """What an attempt of ``cell`` came to."""
    return classify(
        ended.ranks,
        world_size=cell.num_processes,
        gave_up=ended.gave_up,
        stuck=ended.stuck,
        launcher=ended.launcher,
    )


def label(plan: CellPlan) -> str:
    """The cell as people name it: ``fsdp num_cams=1 attention=sdpa grad_ckpt=true``."""
    values = {name: v if isinstance(v, str) else json.dumps(v) for name, v in plan.axes.items()}
    return " ".join(value if name == "backend" else f"{name}={value}" for name, value in values.items())
