"""`bench run --best`: what it measures, stores and resumes. The launches are made up here, and real in e2e."""

import io
import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from examples import MACHINE, cell, rank, rss
from rich.console import Console
from test_sweep import LIMIT, Ranks, sweep_of

from bench.cli.collect import collect
from bench.cli.progress import Progress
from bench.launch.executor import LaunchResult
from bench.launch.watch import Limits, OnBeat
from bench.records.best import Best
from bench.records.cell import Attempt, Cell
from bench.records.outcome import Result
from bench.records.plan import CellPlan, RunPlan
from bench.records.rank_outcome import RankError, RankOom
from bench.records.sources import Sources
from bench.report.tables.best import certificate
from bench.report.tables.table import Lines, Table
from bench.store import run_lock, spool
from bench.store.run_folder import Store
from bench.store.spool import Spec
from bench.sweep.best import Hunt, Planned, Setting, candidates_of, find_best
from bench.sweep.share import Share
from bench.sweep.until import spent_before_s

BACKENDS = {"ddp": 1.0, "fsdp": 0.7, "fsdp2": 0.8, "zero2": 0.9, "zero1": 0.6, "zero3": 0.5}
MODES = {"a": 1.0, "b": 0.75, "c": 0.6, "d": 0.5, "e": 0.4, "f": 0.3, "g": 0.25, "h": 0.2}


class Rated(Ranks):
    """The speed of a cell is a product; nothing scatters. Notes every attempt that is launched."""

    def __init__(self, stop_after: int | None = None, oom: Collection[str] = (), full: Collection[str] = ()) -> None:
        super().__init__([], 8, stop_after)
        self.order: list[tuple[str, int, bool, int]] = []
        self.oom, self.full = oom, full

    def run(self, cell: Cell, folder: Path, limits: Limits, on_beat: OnBeat) -> LaunchResult:
        spec = spool.read(folder / "spec.json", Spec)
        if not isinstance(spec.attempt, Attempt):
            return super().run(cell, folder, limits, on_beat)
        if len(self.order) == self.stop_after:
            raise KeyboardInterrupt
        attempt, mode = spec.attempt, str(cell.options.get("mode"))
        self.order.append((f"{cell.backend} {mode}", attempt.batch_per_rank, attempt.short, attempt.launch))
        if mode in self.oom:
            return LaunchResult(
                ranks=[RankOom(rank=0, phase="bwd", message="planted", at=0.0), rank(1)], isolation="fork"
            )
        step_s = 0.1 * math.sqrt(attempt.batch_per_rank) / (BACKENDS[cell.backend] * MODES[mode])
        memory = rss(7.6 if mode in self.full else 1.0)
        totals = () if attempt.short else None
        ranks = [rank(n, (step_s,) * 3, memory=memory, totals_s=totals) for n in range(2)]
        return LaunchResult(ranks=ranks, isolation="fork")


def plans_of(*batches: Any, modes: Sequence[str] = tuple(MODES)) -> list[CellPlan]:
    found = []
    for backend in BACKENDS:
        for mode in modes:
            of = cell(backend, memory_limit_bytes=LIMIT).model_copy(update={"options": {"mode": mode}})
            listed = tuple(batch for batch in batches if batch != "probe")
            axes = {"backend": backend, "mode": mode}
            found.append(CellPlan(cell=of, batches=listed, search="probe" in batches, axes=axes))
    return found


def nothing(_: Sequence[Result]) -> Collection[str]:
    return ()


def hunted(
    root: Path,
    plans: Sequence[CellPlan],
    ranks: Rated,
    free: Sequence[str] = ("backend", "mode"),
    sources: Sources | None = None,
    goal: dict[str, Any] | None = None,
    **asked: Any,
) -> Best:
    said, store = io.StringIO(), Store(root)
    planned = RunPlan(matrix="example", cells=tuple(plans), choices=("backend", "mode"))
    with store.open(MACHINE, [one.cell for one in plans], "", plan=planned), Progress(Console(file=said)) as progress:
        sweep = sweep_of(plans, store, progress, [], ranks, sources=sources, **(goal or {}))
        progress.begin(cells=len(plans), attempts=sweep.planned(), finished=sweep.finished(), folder="run", notes=[])
        best = find_best(sweep, Hunt(**{"margin": 0.02, "budget_s": None, "free": free, "spoiled": nothing, **asked}))
    if ranks.order:
        last = said.getvalue().splitlines()[-1]
        finished, total = last.partition(" ")[0].split("/")
        assert (finished, " ended: " in last) == (total, True)
    assert store.best() == best
    return best


def soon() -> dict[str, Any]:
    """A budget whose clock stops after as many looks as no run here takes: one that goes on without end fails."""
    looks = iter(range(300))
    return {"budget_s": 1e9, "clock": lambda: float(next(looks))}


def swept(root: Path, plans: Sequence[CellPlan], ranks: Rated) -> None:
    """A run of the whole matrix, or of its searches."""
    store, planned = Store(root), RunPlan(matrix="example", cells=tuple(plans), choices=("backend", "mode"))
    ids = [one.cell for one in plans]
    with store.open(MACHINE, ids, "", plan=planned), Progress(Console(file=io.StringIO())) as progress:
        sweep_of(plans, store, progress, [], ranks).run()


def measured_now(root: Path, plans: Sequence[CellPlan]) -> int:
    """How many attempts a run of the whole matrix launches."""
    ranks = Rated()
    swept(root, plans, ranks)
    return len(ranks.order)


def test_a_quarter_of_the_grid_names_the_fastest_cell_and_the_rest_can_be_measured_later(tmp_path: Path) -> None:
    plans, ranks = plans_of(2), Rated()
    best = hunted(tmp_path / "run", plans, ranks)
    [answer] = best.answers
    assert answer.name == "ddp mode=a, batch 2"
    assert (best.ended, best.of, best.attempts, answer.settings) == ("certified", 48, len(ranks.order), 48)
    assert best.attempts <= 16
    assert answer.within <= 0.1  # enough after a quarter
    assert sum(answer.ruled_out.values()) == 47
    assert answer.ruled_out["others"] >= 34
    full = {name for name, _, short, launch in ranks.order if not short and launch == 1}
    assert measured_now(tmp_path / "run", plans) == 48 - len(full)


def test_an_interrupted_run_goes_on_and_ends_like_an_uninterrupted_one(tmp_path: Path) -> None:
    plans, whole = plans_of(2), Rated()
    expected = hunted(tmp_path / "whole", plans, whole)
    first, rest = Rated(stop_after=5), Rated()
    with pytest.raises(KeyboardInterrupt):
        hunted(tmp_path / "run", plans, first)
    store = Store(tmp_path / "run")
    stopped = store.best()
    assert stopped.ended is None
    assert list(certificate(stopped)) == []
    said = collect([store]).brief[0]
    assert isinstance(said, Lines)
    assert said.title == "No advice yet: --best has not ended"
    assert said.lines[-1] == f"`bench run {tmp_path}/run/matrix.yaml --out {tmp_path}/run --best` goes on."
    with run_lock.held(store.root):
        (store.root / ".lock").write_text("1")  # another process
        said = collect([store]).brief[0]
    assert said.lines[-1] == "A process is still measuring."
    assert hunted(tmp_path / "run", plans, rest).answers == expected.answers
    assert first.order + rest.order == whole.order
    again = Rated()
    assert hunted(tmp_path / "run", plans, again).answers == expected.answers
    assert again.order == []


def test_the_report_shows_the_certificate_and_misses_nothing(tmp_path: Path) -> None:
    hunted(tmp_path / "run", plans_of(2), Rated())
    report = collect([Store(tmp_path / "run")])
    assert not report.missing
    assert report.advice[0].chosen.settings["backend"] == "ddp"
    lines = [line for section in report.brief for line in getattr(section, "lines", ())]
    heading = report.brief[0].title
    assert heading.startswith("Train with ddp, mode a, batch 2: ")
    assert re.search(r", no setting of 48 can be more than \d+\.\d % faster \(95 % confidence\)$", heading)
    assert not any("can be more than" in line for line in lines)
    assert any("not measured and unlikely to be so much faster" in line for line in lines)
    assert any("--best --settle 1%`" in line for line in lines), "five launches of all would be the whole matrix"
    assert not any("measure.launches=5" in line for line in lines)


def test_what_does_not_fit_or_holds_too_much_is_no_answer(tmp_path: Path) -> None:
    best = hunted(tmp_path / "run", plans_of(2), Rated(oom="a", full="b"))
    [answer] = best.answers
    assert answer.name == "ddp mode=c, batch 2"
    assert answer.ruled_out["memory"] >= 1
    assert answer.ruled_out["headroom"] >= 1


def test_a_larger_batch_than_one_that_ran_out_of_memory_is_not_tried(tmp_path: Path) -> None:
    ranks = Rated(oom="a")
    hunted(tmp_path / "run", plans_of(1, 2, 4, modes="ab"), ranks)
    tried: dict[str, list[int]] = {}
    for name, batch, _, _ in ranks.order:
        if name.endswith(" a"):
            assert not any(smaller < batch for smaller in tried.get(name, ())), ranks.order
            tried.setdefault(name, []).append(batch)


@pytest.mark.parametrize(("asked", "batch"), [(2, 2), ("probe", 4)])
def test_each_requirement_has_its_own_answer(tmp_path: Path, asked: int | str, batch: int) -> None:
    best = hunted(tmp_path / "run", plans_of(asked, modes="abc"), Rated(), free=["backend"])
    assert {answer.task: answer.name for answer in best.answers} == {
        f"mode={mode}": f"ddp mode={mode}, batch {batch}" for mode in "abc"
    }
    assert [line[:9] for line in certificate(best) if "can be more" in line] == ["For mode="] * 3


def test_cells_whose_batch_is_searched_are_answered_with_the_batch_to_train_with(tmp_path: Path) -> None:
    plans, ranks = plans_of("probe", modes="abcd"), Rated()
    best = hunted(tmp_path / "run", plans, ranks)
    [answer] = best.answers
    assert answer.name == "ddp mode=a, batch 4"
    searches = Store(tmp_path / "run").probes()
    assert 1 <= len(searches) < len(plans)
    assert best.of == len(plans)


def test_what_a_plan_rules_out_is_not_measured_and_the_certificate_says_so(tmp_path: Path) -> None:
    plans, ranks = plans_of(2), Rated()

    def planned() -> dict[Setting, Planned]:
        says = {"a": Planned(fits=False, expected=None, at_most=None), "h": Planned(True, None, at_most=1.0)}
        return {(one.cell.id, 2): says[mode] for one in plans if (mode := str(one.axes["mode"])) in says}

    best = hunted(tmp_path / "run", plans, ranks, planned=planned)
    [answer] = best.answers
    assert answer.name == "ddp mode=b, batch 2"
    assert (answer.ruled_out["plan"], answer.ruled_out["bound"]) == (6, 6)
    assert not [name for name, *_ in ranks.order[1:] if name[-1] in "ah"]
    [others] = [line for line in certificate(best) if line.startswith("The others: ")]
    assert "6 not measured, as they cannot fit by their plan, 6 slower by the lower bound of their step" in others


def test_a_plan_by_which_nothing_fits_rules_nothing_out(tmp_path: Path) -> None:
    plans = plans_of(2, modes="ab")
    no = {(one.cell.id, 2): Planned(fits=False, expected=None, at_most=None) for one in plans}
    [answer] = hunted(tmp_path / "run", plans, Rated(), planned=lambda: no).answers
    assert answer.name == "ddp mode=a, batch 2"


def test_what_cannot_be_the_answer_rules_out_nothing_by_its_speed(tmp_path: Path) -> None:
    """Mode a holds too much memory; b can never be as fast."""
    plans = plans_of(2, modes="ab")
    bounds = {(one.cell.id, 2): Planned(True, None, at_most=22.0) for one in plans if one.axes["mode"] == "b"}
    [answer] = hunted(tmp_path / "run", plans, Rated(full="a"), planned=lambda: bounds).answers
    assert answer.name == "ddp mode=b, batch 2"


def test_without_an_answer_nothing_is_certified(tmp_path: Path) -> None:
    best = hunted(tmp_path / "run", plans_of(2, modes="ab"), Rated(full="ab"))
    assert (best.answers, best.ended) == ((), "spent")
    said = " ".join(certificate(best))
    assert "No setting can be an answer" in said
    assert "more launches" not in said


def test_verdicts_of_another_goal_answer_nothing(tmp_path: Path) -> None:
    plans = plans_of("probe", modes="ab")
    [first] = hunted(tmp_path / "run", plans, Rated()).answers
    [other] = hunted(tmp_path / "run", plans, Rated(), goal={"max_batch": 2}, **soon()).answers
    assert (first.name, other.name) == ("ddp mode=a, batch 4", "ddp mode=a, batch 2")


def test_a_job_goes_on_with_the_budget_of_the_jobs_before_it(tmp_path: Path) -> None:
    plans, began = plans_of(2, modes="ab"), datetime.fromisoformat("2026-01-01T00:00:00+00:00")
    hunted(tmp_path / "run", plans, first := Rated(), budget_s=1e9)
    store = Store(tmp_path / "run")
    spent_s = sum(one.wall_s for one in store.results())
    with store.open(MACHINE, [one.cell for one in plans], None), Progress(Console(file=io.StringIO())) as progress:
        sweep = sweep_of(plans, store, progress, [], Rated())
        assert spent_before_s(sweep) == 0.0
        assert spent_before_s(replace(sweep, share=Share(began=began))) == pytest.approx(spent_s)
    assert first.order


def test_no_attempt_begins_after_the_budget(tmp_path: Path) -> None:
    ranks = Rated()
    best = hunted(tmp_path / "run", plans_of(2), ranks, budget_s=3.5, clock=lambda: float(len(ranks.order)))
    assert (best.ended, len(ranks.order)) == ("budget", 4)
    assert any("The budget of 4 s is spent: the same command goes on" in line for line in certificate(best))
    [answer] = best.answers
    assert answer.within > 0.05


def test_a_task_of_which_nothing_was_measured_is_named(tmp_path: Path) -> None:
    ranks = Rated()
    asked = {"free": ("backend",), "budget_s": 0.5, "clock": lambda: float(len(ranks.order))}
    best = hunted(tmp_path / "run", plans_of(2, modes="ab"), ranks, **asked)
    assert ([answer.task for answer in best.answers], best.unanswered) == (["mode=a"], ("mode=b",))
    assert best.answers[0].ruled_out == {"open": 5}
    assert "No answer for mode=b: nothing that could be one was measured in full." in list(certificate(best))


def test_axes_with_one_value_say_nothing(tmp_path: Path) -> None:
    found = candidates_of(plans_of(2, modes="a"), ["backend"])
    assert {tuple(one.arm.levels) for one in found} == {("backend",)}
    assert {one.arm.task for one in found} == {""}


@pytest.mark.parametrize("kind", ["run", "search", "best"])
def test_ctrl_c_at_ten_moments_leaves_no_advice_that_the_table_contradicts(kind: str, tmp_path: Path) -> None:
    plans = plans_of("probe", modes="ab") if kind == "search" else plans_of(2, modes="abcd")
    leads = 0
    for moment in range(1, 11):
        root, ranks = tmp_path / str(moment), Rated(stop_after=moment)
        with pytest.raises(KeyboardInterrupt):
            hunted(root, plans, ranks) if kind == "best" else swept(root, plans, ranks)
        report = collect([Store(root)])
        section, table = report.brief[0], next((part for part in report.brief if isinstance(part, Table)), None)
        said = " ".join([section.title, *getattr(section, "lines", ())])
        assert "rain with" not in said, (moment, said)
        assert f"matrix.yaml --out {root}{' --best' * (kind == 'best')}` goes on" in said
        if leading := re.search(r"Leading so far: ([^:]+), batch (\d+):", said):
            leads += 1
            rows = [dict(zip(table.headers, row, strict=True)) for row in table.rows]
            mode = f", mode {rows[0]['mode']}" if "mode" in rows[0] else ""
            assert (f"{rows[0]['backend']}{mode}", rows[0]["batch"]) == leading.groups(), (said, table.rows)
            rates = [float(row["samples/s"]) for row in rows if row["samples/s"]]
            assert rates == sorted(rates, reverse=True)
    assert leads == (0 if kind == "search" else 10)


@pytest.mark.parametrize("breaks", [False, True])
def test_searches_of_other_sources_are_made_again_once(breaks: bool, tmp_path: Path) -> None:
    """Repeated launches of an answer are those of other sources until the answer is launched again. If the new sources
    fail, their search has no verdict."""
    plans = plans_of("probe", modes="ab")
    first = hunted(tmp_path / "run", plans, Rated(), sources={"model.py": "0"})
    launches = [each.attempt.launch for each in Store(tmp_path / "run").results()]
    assert max(launches) > 1
    ranks = Failing(lambda attempt: True) if breaks else Rated()
    again = hunted(tmp_path / "run", plans, ranks, sources={"model.py": "1"}, **soon())
    assert [answer.name for answer in again.answers] == ([] if breaks else [answer.name for answer in first.answers])


def test_a_leader_whose_launches_fail_again_and_again_is_no_answer(tmp_path: Path) -> None:
    ranks = Failing(lambda attempt: attempt.launch > 1 and attempt.cell.backend == "ddp")
    best = hunted(tmp_path / "run", plans_of(2, modes="ab"), ranks, **soon())
    assert [answer.name for answer in best.answers] == ["zero2 mode=a, batch 2"]
    assert best.answers[0].ruled_out["failed"] == 1


class Failing(Rated):
    """Raises an error in the attempts that ``fails`` says."""

    def __init__(self, fails: Callable[[Attempt], bool]) -> None:
        super().__init__()
        self.fails = fails

    def run(self, cell: Cell, folder: Path, limits: Limits, on_beat: OnBeat) -> LaunchResult:
        spec = spool.read(folder / "spec.json", Spec)
        if not isinstance(spec.attempt, Attempt) or not self.fails(spec.attempt):
            return super().run(cell, folder, limits, on_beat)
        error = RankError(rank=0, phase="fwd", error="ValueError: planted", traceback="planted", at=0.0)
        return LaunchResult(ranks=[error, rank(1)], isolation="fork")
