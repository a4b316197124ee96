"""Sweeps with made-up launches, for tests of what a sweep launches, counts and looks at."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from examples import GIB, MACHINE, cell, rank, rss
from rich.console import Console

from bench.cli.progress import Progress
from bench.launch.local import LaunchResult
from bench.launch.watch import Limits, OnBeat
from bench.machine.conditions import Sampler
from bench.records.cell import Attempt, Cell, Walk
from bench.records.conditions import Conditions
from bench.records.plan import CellPlan
from bench.records.rank_outcome import RankOom
from bench.records.verdict import Goal
from bench.store import spool
from bench.store.run_folder import Store
from bench.store.spool import Spec
from bench.sweep.sweep import Sweep

LIMIT = 2 * GIB


class Ranks:
    """Batches up to ``fits`` fit, and all of them without a limit. A walk leaves nothing."""

    def __init__(self, events: list[str], fits: int, stop_after: int | None = None) -> None:
        self.events, self.fits, self.stop_after = events, fits, stop_after

    def run(self, cell: Cell, folder: Path, limits: Limits, on_beat: OnBeat) -> LaunchResult:
        spec = spool.read(folder / "spec.json", Spec)
        assert spec is not None
        asked = spec.attempt
        if self.events.count("attempt") == self.stop_after:
            raise KeyboardInterrupt
        self.events.append("walk" if isinstance(asked, Walk) else "attempt")
        if isinstance(asked, Attempt) and (asked.batch_per_rank <= self.fits or not cell.memory_limit_bytes):
            totals_s = () if asked.short else None
            ranks = [rank(number, memory=rss(1.0), totals_s=totals_s) for number in range(2)]
            return LaunchResult(ranks=ranks, isolation="fork")
        oom = RankOom(rank=0, phase="bwd", message="planted", at=0.0)
        return LaunchResult(ranks=[oom, rank(1)], isolation="fork")

    def prepare(self, num_processes: int) -> None: ...

    def close(self) -> None: ...


class Looks(Sampler):
    """Says when it is called; what it sees is the real machine."""

    def __init__(self, folder: Path, events: list[str]) -> None:
        self.events: list[str] = []
        super().__init__(folder, {"CUDA_VISIBLE_DEVICES": ""})
        self.events = events

    def begin(self) -> None:
        self.events.append("begin")
        super().begin()

    def end(self) -> Conditions:
        self.events.append("end")
        return super().end()


def plan(backend: str, *batches: Any) -> CellPlan:
    return CellPlan(cell=cell(backend, memory_limit_bytes=LIMIT), batches=batches, axes={"backend": backend})


def sweep_of(
    plans: Sequence[CellPlan],
    store: Store,
    progress: Progress,
    events: list[str],
    ranks: Ranks,
    rerun: Any = None,
    **goal: Any,
) -> Sweep:
    return Sweep(
        plans=plans,
        goal=Goal.model_validate({"max_batch": 4} | goal),
        units=(),
        machine=MACHINE,
        limits=Limits(60, None),
        rerun=rerun,
        store=store,
        executor=ranks,
        progress=progress,
        beside=Looks(store.root, events),
    )


def swept(
    root: Path,
    plans: Sequence[CellPlan],
    *,
    fits: int = 4,
    rerun: Any = None,
    stop_after: int | None = None,
    **goal: Any,
) -> tuple[list[str], list[str]]:
    """One sweep of ``plans``: what happened, and what was said."""
    events: list[str] = []
    said, store = io.StringIO(), Store(root)
    with store.open(MACHINE, [one.cell for one in plans], ""), Progress(Console(file=said)) as progress:
        sweep = sweep_of(plans, store, progress, events, Ranks(events, fits, stop_after), rerun, **goal)
        attempts, notes, finished = sweep.planned(), sweep.failed_before(), sweep.finished()
        progress.begin(cells=len(plans), attempts=attempts, finished=finished, folder="run", notes=notes)
        sweep.run()
    return events, said.getvalue().splitlines()
