"""What a sweep launches, counts and looks at. The launches are made up here, and real in e2e."""

import io
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from examples import GIB, MACHINE, cell, rank, rss
from rich.console import Console

from bench.cli.progress import Progress
from bench.launch.executor import Executor, LaunchResult
from bench.launch.watch import Limits, OnBeat
from bench.machine.conditions import Sampler
from bench.observe.beats import BeatFile
from bench.records.cell import Attempt, Cell, Measure, Walk
from bench.records.conditions import Conditions
from bench.records.outcome import Failed
from bench.records.phases import Stage
from bench.records.plan import CellPlan
from bench.records.rank_outcome import RankOom
from bench.records.sources import Sources
from bench.records.verdict import Goal
from bench.store import spool
from bench.store.beats import Beat
from bench.store.run_folder import Store
from bench.store.spool import Spec
from bench.sweep.priors import Priors
from bench.sweep.probe import search_cell
from bench.sweep.share import Share
from bench.sweep.stored_before import stored_before
from bench.sweep.sweep import Sweep

LIMIT = 2 * GIB


class Ranks:
    """Batches up to ``fits`` fit, and all of them without a limit. A walk leaves nothing."""

    sample_gib = 0.0

    def __init__(self, events: list[str], fits: int, stop_after: int | None = None) -> None:
        self.events, self.fits, self.stop_after = events, fits, stop_after

    def run(self, cell: Cell, folder: Path, limits: Limits, on_beat: OnBeat) -> LaunchResult:
        spec = spool.read(folder / "spec.json", Spec)
        asked = spec.attempt
        if self.events.count("attempt") == self.stop_after:
            raise KeyboardInterrupt
        self.events.append("walk" if isinstance(asked, Walk) else "attempt")
        if isinstance(asked, Attempt) and (asked.batch_per_rank <= self.fits or not cell.memory_limit_bytes):
            totals_s = () if asked.short else None
            memory = rss(1.0 + self.sample_gib * asked.batch_per_rank)
            ranks = [rank(number, memory=memory, totals_s=totals_s) for number in range(2)]
            return LaunchResult(ranks=ranks, isolation="fork")
        oom = RankOom(rank=0, phase="bwd", message="planted", at=0.0)
        return LaunchResult(ranks=[oom, rank(1)], isolation="fork")

    def prepare(self, cell: Cell) -> None: ...

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
    listed, of = tuple(batch for batch in batches if batch != "probe"), cell(backend, memory_limit_bytes=LIMIT)
    return CellPlan(cell=of, batches=listed, search="probe" in batches, axes={"backend": backend})


def sweep_of(
    plans: Sequence[CellPlan],
    store: Store,
    progress: Progress,
    events: list[str],
    ranks: Executor,
    rerun: Any = None,
    sources: Sources | None = None,
    keep_stale: bool = False,
    priors: Priors | None = None,
    share: Share | None = None,
    **goal: Any,
) -> Sweep:
    return Sweep(
        plans=plans,
        goal=Goal.model_validate({"max_batch": 4} | goal),
        search=search_cell,
        units=(),
        machine=MACHINE,
        limits=Limits(60, None),
        rerun=rerun,
        sources=sources,
        keep_stale=keep_stale,
        share=share or Share(),
        priors=priors,
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
        attempts = sweep.planned()
        notes, finished = stored_before(sweep), sweep.finished()
        progress.begin(cells=len(plans), attempts=attempts, finished=finished, folder="run", notes=notes)
        sweep.run()
    return events, said.getvalue().splitlines()


@pytest.mark.parametrize("fits", [4, 0])
def test_the_machine_is_looked_at_beside_every_launch(tmp_path: Path, fits: int) -> None:
    """Without it a walk's own work is what the machine did before the attempt after it."""
    events, _ = swept(tmp_path / "run", [plan("ddp", "probe"), plan("fsdp", 2)], fits=fits)
    launches = events[1::3]
    assert {"walk", "attempt"} == set(launches)
    assert events == [event for launch in launches for event in ("begin", launch, "end")]


def test_a_search_that_is_replayed_counts_once_and_launches_nothing(tmp_path: Path) -> None:
    plans = [plan("ddp", "probe"), plan("fsdp", "probe"), plan("zero2", 1, 2)]
    swept(tmp_path / "run", plans[:2])
    events, said = swept(tmp_path / "run", plans)
    assert events == ["begin", "attempt", "end"] * 2
    assert said[0] == "3 cells, 4 attempts; results in run"
    assert [line.partition("  safe")[0] for line in said if "probed" in line] == [
        "1/4 ddp  probed",
        "2/4 fsdp  probed",
    ]
    assert said[-1].startswith("4/4 zero2, batch 2: ok")


def test_results_with_the_same_axes_and_other_settings_are_named(tmp_path: Path) -> None:
    """A run that is resumed without its ``measure.steps=30`` would begin a second one, and say nothing."""
    ours, other = plan("ddp", 1), plan("fsdp", 1)
    measure = ours.cell.measure.model_copy(update={"steps": 30})
    swept(
        tmp_path / "run", [ours.model_copy(update={"cell": ours.cell.model_copy(update={"measure": measure})}), other]
    )
    _, said = swept(tmp_path / "run", [ours])
    assert "1 stored result has other settings (measure.steps 30, now 3) and stays in the report" in " ".join(said)
    _, said = swept(tmp_path / "run", [ours, other])
    assert "1 stored result has other settings" in " ".join(said)
    swept(tmp_path / "new", [ours, other])
    _, said = swept(tmp_path / "new", [ours])
    assert "other settings" not in " ".join(said)


def test_another_headroom_measures_no_finished_attempt_again(tmp_path: Path) -> None:
    plans = [plan("ddp", "probe")]
    swept(tmp_path / "run", plans)
    store = Store(tmp_path / "run")
    before = store.of_cell(plans[0].cell)
    swept(tmp_path / "run", plans, headroom=0.2)  # a batch holds 25 %
    again = swept(tmp_path / "run", plans, headroom=0.2)
    assert again[0] == []
    assert [one for one in store.of_cell(plans[0].cell) if one in before] == before
    assert [probe.goal.headroom for probe in store.probes()] == [0.2]
    assert swept(tmp_path / "run", plans, headroom=0.9)[0] == []


def test_a_long_walk_is_not_listed_to_its_end(tmp_path: Path) -> None:
    _, said = swept(tmp_path / "run", [plan("ddp", "probe")], max_batch=65536)
    assert "0/1 ddp walking 1, 2, 4, ... up to 65536 in one process" in said
    _, said = swept(tmp_path / "short", [plan("ddp", "probe")])
    assert "0/1 ddp walking 1, 2, 4 in one process" in said


def test_a_search_that_is_made_anew_was_not_finished_before(tmp_path: Path) -> None:
    plans = [plan("ddp", "probe"), plan("fsdp", 1)]
    swept(tmp_path / "run", plans)
    _, said = swept(tmp_path / "run", plans, rerun="all")
    assert said[0] == "2 cells, 2 attempts; results in run"
    assert sum("1/2 ddp  probed" in line for line in said) == 1
    assert said[-1].startswith("2/2 fsdp, batch 1: ok")


@pytest.mark.parametrize(("rerun", "launches"), [("all", 2), ("oom", 1), ("failed", 0)])
def test_what_is_listed_beside_a_search_is_measured_anew_once(tmp_path: Path, rerun: str, launches: int) -> None:
    """Batch 1 is listed; the search walks, and finds that 2 does not fit."""
    plans = [plan("ddp", 1, "probe")]
    swept(tmp_path / "run", plans, fits=1, max_batch=2)
    before = Store(tmp_path / "run").of_cell(plans[0].cell)
    assert [(one.attempt.batch_per_rank, one.outcome.kind) for one in before] == [(1, "ok"), (2, "oom")]
    events, _ = swept(tmp_path / "run", plans, fits=1, rerun=rerun, max_batch=2)
    assert events.count("attempt") == launches
    after = Store(tmp_path / "run").of_cell(plans[0].cell)
    assert [one.attempt for one in after] == [one.attempt for one in before]


def test_a_search_that_is_made_anew_replaces_its_own_attempts_and_no_others(tmp_path: Path) -> None:
    """More fits than before. Batch 3 is no multiple of 2, and not asked for now."""
    root, alone = tmp_path / "run", [plan("ddp", "probe")]
    swept(root, [plan("ddp", 3, "probe")], fits=5, granularity=2, max_batch=8)
    swept(root, alone, fits=8, granularity=2, max_batch=8, rerun="all")
    after = Store(root).of_cell(alone[0].cell)
    swept(tmp_path / "fresh", alone, fits=8, granularity=2, max_batch=8)
    fresh = Store(tmp_path / "fresh").of_cell(alone[0].cell)
    assert [one.attempt for one in after if one.attempt.batch_per_rank != 3] == [one.attempt for one in fresh]
    assert len(after) == len(fresh) + 1


def test_what_a_rerun_did_not_reach_keeps_its_earlier_result(tmp_path: Path) -> None:
    root, plans = tmp_path / "run", [plan("ddp", 1, "probe")]
    swept(root, plans, fits=2)
    before = [one.attempt for one in Store(root).of_cell(plans[0].cell)]
    with pytest.raises(KeyboardInterrupt):
        swept(root, plans, fits=2, rerun="all", stop_after=2)
    assert [one.attempt for one in Store(root).of_cell(plans[0].cell)] == before


def test_what_the_smallest_batch_needs_is_not_taken_from_a_search_for_another(tmp_path: Path) -> None:
    plans = [plan("ddp", "probe")]
    for granularity, launches in ((4, 2), (1, 3), (1, 0)):  # batches 4, 2 and 1 do not fit; and one without a limit
        events, _ = swept(tmp_path / "run", plans, fits=0, granularity=granularity)
        assert events.count("attempt") == launches


OLD, NEW = {"model/policy.py": "0", "model/data.py": "0"}, {"model/policy.py": "1", "model/data.py": "0"}


@pytest.mark.parametrize("batches", [(1, 2), ("probe",)])
def test_what_other_sources_made_is_measured_again(tmp_path: Path, batches: tuple[Any, ...]) -> None:
    root, plans = tmp_path / "run", [plan("ddp", *batches)]
    first, _ = swept(root, plans, sources=OLD)
    before = Store(root).of_cell(plans[0].cell)
    assert all(result.sources == OLD for result in before)
    assert swept(root, plans, sources=OLD)[0] == []
    again, said = swept(root, plans, sources=NEW)
    assert again == first
    after = Store(root).of_cell(plans[0].cell)
    assert [result.attempt for result in after] == [result.attempt for result in before]
    assert all(result.sources == NEW for result in after)
    assert len(list((root / "superseded").rglob("result.json"))) == len(before)
    were = "results were" if len(before) > 1 else "result was"
    assert any(
        f"{len(before)} stored {were} made by older code (model/policy.py changed): measured again" in line
        for line in said
    )
    assert swept(root, plans, sources=NEW)[0] == []


@pytest.mark.parametrize("batches", [(1, 2), ("probe",)])
def test_stale_results_can_be_kept(tmp_path: Path, batches: tuple[Any, ...]) -> None:
    root, plans = tmp_path / "run", [plan("ddp", *batches)]
    swept(root, plans, sources=OLD)
    events, said = swept(root, plans, sources=NEW, keep_stale=True)
    assert events == []
    assert any("(model/policy.py changed): kept, and marked in the report" in line for line in said)


def test_results_that_do_not_know_their_sources_are_kept(tmp_path: Path) -> None:
    root, plans = tmp_path / "run", [plan("ddp", 1, "probe")]
    swept(root, plans)
    events, said = swept(root, plans, sources=NEW)
    assert events == []
    assert not any("sources" in line for line in said)


ALONE = CellPlan(cell=cell("single", num_processes=1), batches=(1,), axes={"backend": "single"})


@pytest.mark.parametrize(
    ("plans", "rerun", "first"),
    [
        ([plan("zero2", 1)], None, None),
        ([plan("zero2", 1, 4)], None, None),  # 2 ran out of memory, so 4 was skipped
        ([plan("ddp", "probe"), plan("zero2", 1, 2)], None, None),
        ([plan("zero2", 1), ALONE, plan("fsdp", 1)], None, 1),
        ([plan("zero2", 1), plan("fsdp", "probe")], None, 2),
        ([plan("zero2", 2), plan("ddp", "probe")], "oom", 2),
        ([plan("ddp", "probe")], "all", 2),
    ],
)
def test_ranks_are_started_beforehand_only_for_what_is_not_stored(
    tmp_path: Path, plans: list[CellPlan], rerun: str | None, first: int | None
) -> None:
    class Prepares(Ranks):
        def prepare(self, cell: Cell) -> None:
            prepared.append(cell.num_processes)

    prepared: list[int] = []
    root = tmp_path / "run"
    swept(root, [plan("ddp", "probe"), plan("zero2", 1, 2, 4)], fits=1)
    store = Store(root)
    with store.open(MACHINE, [one.cell for one in plans], ""), Progress(Console(file=io.StringIO())) as progress:
        sweep_of(plans, store, progress, [], Prepares([], 1), rerun).prepare()
    assert prepared == ([] if first is None else [first])


def test_a_build_of_an_extension_is_shown_as_waiting(tmp_path: Path) -> None:
    class Builds(Ranks):
        def run(self, cell: Cell, folder: Path, limits: Limits, on_beat: OnBeat) -> LaunchResult:
            for stage in (Stage.SETUP, Stage.COMPILE, Stage.SETUP):
                on_beat(Beat(phase=stage, step=0, steps=0))
            return super().run(cell, folder, limits, on_beat)

    class Shows(Progress):
        def waiting(self, what: str) -> None:
            shown.append(what)

        def beat(self, phase: str, step: int, steps: int) -> None:
            shown.append(phase)

    shown: list[str] = []
    store, plans = Store(tmp_path / "run"), [plan("zero2", 1)]
    with store.open(MACHINE, [plans[0].cell], ""), Shows(Console(file=io.StringIO())) as progress:
        sweep_of(plans, store, progress, [], Builds([], 1)).run()
    assert shown == ["setup", "building DeepSpeed's extension, once", "setup"]


def test_failures_within_a_search_are_told_as_well(tmp_path: Path) -> None:
    plans = [plan("ddp", "probe")]
    swept(tmp_path / "run", plans)
    store = Store(tmp_path / "run")
    stored = store.of_cell(plans[0].cell)[0]
    store.finish(stored.model_copy(update={"outcome": Failed(rank=0, phase="bwd", reason="planted")}))
    _, said = swept(tmp_path / "run", plans)
    assert said[:2] == [
        "1 cell, 1 attempt; results in run",
        "1 stored attempt failed or hung: --rerun failed measures them again",
    ]


def test_ranks_that_left_what_cannot_be_are_a_failure(tmp_path: Path) -> None:
    asked = cell("ddp", memory_limit_bytes=LIMIT, measure=Measure(warmup_steps=1, steps=4, phase_steps=2))
    _, said = swept(tmp_path / "run", [CellPlan(cell=asked, batches=(1,), axes={"backend": "ddp"})])
    (stored,) = Store(tmp_path / "run").results()
    assert stored.outcome.fault == "ended"
    assert stored.outcome.reason.startswith("its ranks left invalid result files: rank 0 has ")
    assert "3 measured and 2 phase steps, its attempt 1 warm-up, 4 measured" in stored.outcome.reason
    assert any("failed" in line for line in said)


@pytest.mark.parametrize("saw_the_end", [True, False])
def test_the_account_of_an_attempt_is_stored(tmp_path: Path, saw_the_end: bool) -> None:
    class Stamping(Ranks):
        def run(self, cell: Cell, folder: Path, limits: Limits, on_beat: OnBeat) -> LaunchResult:
            for beat in (BeatFile(folder, 0), BeatFile(folder, 1)):
                beat(Stage.START)
                beat(Stage.MEASURE)
            launched = super().run(cell, folder, limits, on_beat)
            return replace(launched, ended_s=time.monotonic() if saw_the_end else None)

    plans, store = [plan("ddp", 1)], Store(tmp_path)
    with store.open(MACHINE, [plans[0].cell], ""), Progress(Console(file=io.StringIO())) as progress:
        sweep_of(plans, store, progress, [], Stamping([], fits=4)).run()
    (stored,) = store.results()
    assert list(stored.account.parts_s) == ["launch", "start", *(["measure", "end"] if saw_the_end else [])]
    assert (stored.account.accounted_s == pytest.approx(stored.wall_s)) == saw_the_end


def test_what_an_attempt_left_of_a_checkpoint_is_removed(tmp_path: Path) -> None:
    class Leaving(Ranks):
        """Ranks that end before they remove it, or bench itself is stopped meanwhile."""

        def run(self, cell: Cell, folder: Path, limits: Limits, on_beat: OnBeat) -> LaunchResult:
            (spool.checkpoint_folder(folder) / "part").mkdir(parents=True)
            return super().run(cell, folder, limits, on_beat)

    plans = [plan("ddp", 1), plan("fsdp", 1)]
    store = Store(tmp_path)
    with store.open(MACHINE, [one.cell for one in plans], ""), Progress(Console(file=io.StringIO())) as progress:
        sweep = sweep_of(plans, store, progress, [], Leaving(events := [], fits=4, stop_after=1))
        with pytest.raises(KeyboardInterrupt):
            sweep.run()
    assert events == ["attempt"]
    assert len(list(tmp_path.glob("attempts/*/*/spec.json"))) == 2
    assert not list(tmp_path.glob("attempts/*/*/checkpoint"))
