"""Repeated launches: their order, what they leave out, and how a run with them is counted and resumed."""

import io
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from examples import MACHINE, cell, ok, rank, result, rss
from rich.console import Console
from test_sweep import LIMIT, Ranks, plan, sweep_of, swept

from bench.cli.progress import Progress
from bench.errors import InputError
from bench.launch.executor import LaunchResult
from bench.launch.watch import Limits, OnBeat
from bench.records.account import Account
from bench.records.cell import Attempt, Cell
from bench.records.outcome import Result
from bench.records.plan import CellPlan
from bench.records.rank_outcome import RankError
from bench.records.until import Until, Width
from bench.store import spool
from bench.store.run_folder import Store
from bench.store.spool import Spec
from bench.sweep.share import Share
from bench.sweep.until import MOST_FAILED, MOST_LAUNCHES, Target, auto_budget_s, go_on


def launched(backend: str, *batches: Any, launches: int = 3) -> CellPlan:
    return plan(backend, *batches).model_copy(update={"launches": launches})


class Ordered(Ranks):
    """Notes every attempt in ``order``; launches in ``fail`` fail."""

    def __init__(
        self, fits: int = 4, fail: tuple[tuple[str, int, int], ...] = (), stop_after: int | None = None
    ) -> None:
        super().__init__([], fits, stop_after)
        self.order: list[tuple[str, int, int]] = []
        self.fail = fail

    def run(self, cell: Cell, folder: Path, limits: Limits, on_beat: OnBeat) -> LaunchResult:
        result = super().run(cell, folder, limits, on_beat)
        spec = spool.read(folder / "spec.json", Spec)
        if isinstance(spec.attempt, Attempt) and not spec.attempt.short:
            self.order.append((cell.backend, spec.attempt.batch_per_rank, spec.attempt.launch))
            if self.order[-1] in self.fail:
                error = RankError(rank=0, phase="bwd", error="planted", traceback="", at=0.0)
                return LaunchResult(ranks=[error, rank(1, memory=rss(1.0))], isolation="fork")
        return result


def order(root: Path, plans: list[CellPlan], ranks: Ordered, **settings: Any) -> tuple[list[tuple[str, int, int]], str]:
    """One sweep: the attempts that were launched, and what was said."""
    said, store = io.StringIO(), Store(root)
    with store.open(MACHINE, [one.cell for one in plans], ""), Progress(Console(file=said)) as progress:
        sweep = sweep_of(plans, store, progress, [], ranks, **settings)
        finished, attempts = sweep.finished(), sweep.planned()
        progress.begin(cells=len(plans), attempts=attempts, finished=finished, folder="run", notes=[])
        results = sweep.run()
        assert results == [one for one in store.results() if not one.attempt.short or plans[0].search]
    return ranks.order, said.getvalue()


def test_every_attempt_is_launched_as_often_as_asked_and_each_round_is_complete(tmp_path: Path) -> None:
    plans = [launched("ddp", 1, 2), launched("fsdp", 1, 2), launched("zero2", 1)]
    made, said = order(tmp_path / "run", plans, Ordered())
    assert [launch for _, _, launch in made] == [1] * 5 + [2] * 5 + [3] * 5
    assert set(Counter((backend, batch) for backend, batch, _ in made).values()) == {3}
    assert "3 cells, 15 attempts; results in run" in said
    assert "15/15 " in said
    stored = [
        (one.attempt.batch_per_rank, one.attempt.launch) for one in Store(tmp_path / "run").of_cell(plans[0].cell)
    ]
    assert stored == [(batch, launch) for batch in (1, 2) for launch in (1, 2, 3)]


def test_rounds_have_different_orders_that_depend_on_the_seed_alone(tmp_path: Path) -> None:
    plans = [launched(backend, 1, 2, launches=4) for backend in ("ddp", "fsdp", "zero2")]
    made, _ = order(tmp_path / "one", plans, Ordered())
    again, _ = order(tmp_path / "two", plans, Ordered())
    assert made == again
    rounds = [[one[:2] for one in made if one[2] == launch] for launch in range(1, 5)]
    assert len({tuple(one) for one in rounds}) == 4
    for backend in ("ddp", "fsdp", "zero2"):
        assert rounds[0].index((backend, 1)) < rounds[0].index((backend, 2))


def test_one_launch_keeps_the_order_of_the_matrix(tmp_path: Path) -> None:
    plans = [launched(backend, 1, 2, launches=1) for backend in ("zero2", "ddp", "fsdp")]
    made, _ = order(tmp_path / "run", plans, Ordered())
    assert made == [(backend, batch, 1) for backend in ("zero2", "ddp", "fsdp") for batch in (1, 2)]


@pytest.mark.parametrize("stop_after", [1, 4, 7, 8])
def test_a_stopped_run_goes_on_in_the_same_order(tmp_path: Path, stop_after: int) -> None:
    plans = [launched("ddp", 1), launched("fsdp", 1), launched("zero2", 1)]
    whole, _ = order(tmp_path / "whole", plans, Ordered())
    first = Ordered(stop_after=stop_after)
    with pytest.raises(KeyboardInterrupt):
        order(tmp_path / "run", plans, first)
    rest, said = order(tmp_path / "run", plans, Ordered())
    assert first.order + rest == whole
    assert f"9 attempts, {stop_after} of them finished before" in said
    assert order(tmp_path / "run", plans, Ordered())[0] == []


def test_more_launches_later_add_to_those_that_are_stored(tmp_path: Path) -> None:
    swept(tmp_path / "run", [plan("ddp", 1)])
    made, _ = order(tmp_path / "run", [launched("ddp", 1)], Ordered())
    assert made == [("ddp", 1, 2), ("ddp", 1, 3)]
    made, _ = order(tmp_path / "run", [launched("ddp", 1, launches=1)], Ordered())
    assert made == []


def test_what_did_not_succeed_at_first_is_not_launched_again(tmp_path: Path) -> None:
    plans = [launched("ddp", 1, 2, 4), launched("fsdp", 1)]
    made, said = order(tmp_path / "run", plans, Ordered(fits=1, fail=(("fsdp", 1, 1),)))
    assert sorted(made) == [("ddp", 1, 1), ("ddp", 1, 2), ("ddp", 1, 3), ("ddp", 2, 1), ("fsdp", 1, 1)]
    assert "6/6 ddp, batch 1, launch 3: ok" in said
    kinds = [(one.attempt.batch_per_rank, one.outcome.kind) for one in Store(tmp_path / "run").of_cell(plans[0].cell)]
    assert kinds == [(1, "ok")] * 3 + [(2, "oom"), (4, "skipped")]


def test_a_later_launch_that_fails_is_data_and_stops_no_other(tmp_path: Path) -> None:
    plans = [launched("ddp", 1, launches=4), launched("fsdp", 1, launches=4)]
    order(tmp_path / "run", plans, Ordered(fail=(("ddp", 1, 3),)))
    assert [one.outcome.kind for one in Store(tmp_path / "run").of_cell(plans[0].cell)] == ["ok", "ok", "failed", "ok"]
    made, _ = order(tmp_path / "run", plans, Ordered(), rerun="failed")
    assert made == [("ddp", 1, 3)]
    assert {one.outcome.kind for one in Store(tmp_path / "run").results()} == {"ok"}


def test_a_rerun_measures_every_stored_launch_again_also_more_than_are_listed(tmp_path: Path) -> None:
    order(tmp_path / "run", [launched("ddp", 1, launches=4)], Ordered())
    made, _ = order(tmp_path / "run", [launched("ddp", 1, launches=2)], Ordered(), rerun="all")
    assert made == [("ddp", 1, launch) for launch in (1, 2, 3, 4)]


def test_the_answers_of_a_search_are_launched_again_in_full(tmp_path: Path) -> None:
    plans = [launched("ddp", "probe"), launched("fsdp", "probe")]
    made, said = order(tmp_path / "run", plans, Ordered(fits=2))
    verdicts = {probe.cell.backend: probe.found for probe in Store(tmp_path / "run").probes()}
    answers = {(name, answer.batch) for name, found in verdicts.items() for answer in (found.best, found.safe)}  # type: ignore[union-attr]
    assert {one[:2] for one in made if one[2] > 1} == answers
    assert Counter(one[2] for one in made if one[2] > 1) == {2: len(answers), 3: len(answers)}
    total = 2 + 2 * len(answers)
    assert f"{total}/{total} " in said
    again, said = order(tmp_path / "run", plans, Ordered(fits=2))
    assert again == []
    assert [probe.found for probe in Store(tmp_path / "run").probes()] == list(verdicts.values())
    assert f"2 cells, {total} attempts, {total - 2} of them finished before" in said
    made, _ = order(tmp_path / "run", plans, Ordered(fits=2), rerun="all")
    assert {one[:2] for one in made if one[2] > 1} == answers


# --until


class Clock:
    """Each launch takes 10 s."""

    def __init__(self, ranks: Ordered) -> None:
        self.ranks = ranks

    def __call__(self) -> float:
        return 10.0 * len(self.ranks.order)


def went_on(
    root: Path,
    plans: list[CellPlan],
    ranks: Ordered,
    widths: Any,
    budget_s: float | None = None,
    *,
    auto: bool = False,
    **share: Any,
) -> tuple[Until, list[tuple[str, int, int]], str]:
    """A sweep and what follows it: how it ended, the launches after the listed ones, and what was said."""
    said, store = io.StringIO(), Store(root)
    with store.open(MACHINE, [one.cell for one in plans], ""), Progress(Console(file=said)) as progress:
        sweep = sweep_of(plans, store, progress, [], ranks, share=Share(**share))
        progress.begin(cells=len(plans), attempts=sweep.planned(), finished=sweep.finished(), folder="run", notes=[])
        sweep.run()
        listed = len(ranks.order)
        target = Target(half_width=0.02, budget_s=budget_s, widths=widths, auto=auto, clock=Clock(ranks))
        until = go_on(sweep, target)
        assert store.until() == until
    return until, ranks.order[listed:], said.getvalue()


def pair(one: CellPlan, other: CellPlan, half_width: float | None) -> Width:
    return Width(
        Attempt(cell=one.cell, batch_per_rank=1), Attempt(cell=other.cell, batch_per_rank=1), half_width=half_width
    )


DDP, FSDP, ZERO = launched("ddp", 1, launches=1), launched("fsdp", 1, launches=1), launched("zero2", 1, launches=1)


def wide(_: object) -> list[Width]:
    """Never narrow enough."""
    return [pair(FSDP, DDP, 0.5)]


def test_both_sides_are_launched_until_every_comparison_is_narrow(tmp_path: Path) -> None:
    until, made, said = went_on(
        tmp_path / "run", [DDP, FSDP], Ordered(), lambda results: [pair(FSDP, DDP, 0.12 / len(results))]
    )
    assert (until.ended, until.launches, until.comparisons, until.wide) == ("narrow", 4, 1, 0)
    assert until.widest == pytest.approx(0.02)
    assert [one[2] for one in made] == [2, 2, 3, 3]
    assert "2/4 going on: 1 of 1 comparison wider than 2.0 %, the widest 6.0 %" in said


def test_the_widest_comes_first_and_what_is_narrow_is_left_alone(tmp_path: Path) -> None:
    widths = [pair(FSDP, DDP, 0.01), pair(ZERO, DDP, 0.05), pair(ZERO, FSDP, None)]
    until, made, _ = went_on(tmp_path / "run", [DDP, FSDP, ZERO], Ordered(), lambda _: widths, budget_s=30.0)
    assert {one[0] for one in made[:2]} == {"zero2", "fsdp"}  # unknown is the widest
    assert made[2][0] == "ddp"
    assert (until.ended, until.launches, until.wide, until.widest) == ("budget", 3, 2, None)


def test_no_launch_begins_after_the_budget_is_spent_and_a_resumed_run_has_a_new_one(tmp_path: Path) -> None:
    until, made, said = went_on(tmp_path / "run", [DDP, FSDP], Ordered(), wide, budget_s=25.0)
    assert (until.ended, until.launches, len(made), until.took_s) == ("budget", 3, 3, 30.0)
    assert said.splitlines()[-1] == "5/5 the budget of 25 s is spent"
    until, again, _ = went_on(tmp_path / "run", [DDP, FSDP], Ordered(), wide, budget_s=25.0)
    assert (until.launches, len(again)) == (3, 3)
    assert not {*made} & {*again}


def test_the_jobs_of_one_command_share_a_budget(tmp_path: Path) -> None:
    root, before = tmp_path / "run", datetime.now(UTC) - timedelta(hours=1)
    went_on(root, [DDP, FSDP], Ordered(), wide, budget_s=25.0)
    store = Store(root)
    for one in store.results():  # a real attempt takes 10 s of wall time, too; the listed launches do not count
        store.finish(one.model_copy(update={"wall_s": 10.0}))
    until, made, _ = went_on(root, [DDP, FSDP], Ordered(), wide, budget_s=45.0, began=before)
    assert (until.ended, until.launches, len(made), until.took_s) == ("budget", 5, 2, 50.0)
    until, made, _ = went_on(root, [DDP, FSDP], Ordered(), wide, budget_s=25.0, began=datetime.now(UTC) + timedelta(1))
    assert (until.launches, len(made)) == (3, 3)


def test_of_auto_a_resumed_run_goes_on_with_the_same_budget(tmp_path: Path) -> None:
    root = tmp_path / "run"
    until, _, _ = went_on(root, [DDP, FSDP], Ordered(), wide, budget_s=25.0, auto=True)
    assert (until.auto, until.ended, until.launches) == (True, "budget", 3)
    until, made, _ = went_on(root, [DDP, FSDP], Ordered(), wide, budget_s=25.0, auto=True)
    assert (until.ended, until.launches, made) == ("budget", 3, [])
    store = Store(root)
    store.finish_until(until.model_copy(update={"ended": None, "took_s": 0.0}))  # as a killed run leaves it
    for one in store.results():
        store.finish(one.model_copy(update={"wall_s": 10.0}))
    until, made, _ = went_on(root, [DDP, FSDP], Ordered(), wide, budget_s=45.0, auto=True)
    assert (until.ended, until.launches, len(made)) == ("budget", 5, 2)


def test_ctrl_c_while_launching_again_loses_nothing(tmp_path: Path) -> None:
    whole, made, _ = went_on(tmp_path / "whole", [DDP, FSDP], Ordered(), wide, budget_s=45.0, auto=True)
    stopped = Ordered(stop_after=4)
    with pytest.raises(KeyboardInterrupt):
        went_on(tmp_path / "run", [DDP, FSDP], stopped, wide, budget_s=45.0, auto=True)
    store = Store(tmp_path / "run")
    before = store.until()
    assert before.ended is None
    assert len(store.results()) == len(stopped.order) == 4
    for one in store.results():
        store.finish(one.model_copy(update={"wall_s": 10.0}))
    until, rest, said = went_on(tmp_path / "run", [DDP, FSDP], Ordered(), wide, budget_s=45.0, auto=True)
    assert stopped.order[2:] + rest == made
    assert (until.ended, until.launches) == (whole.ended, whole.launches)
    assert (
        "launching again what decides: 1 of 1 comparison wider than 2.0 %, the widest 50.0 %; for at most 25 s" in said
    )


def test_the_budget_of_auto_is_a_quarter_of_the_time_or_in_a_short_run_three_launches_of_the_leading_pair() -> None:
    def took(backend: str, wall_s: float, launch: int = 1) -> Result:
        one = result(ok(backend=backend), backend=backend).model_copy(update={"wall_s": wall_s})
        return one.model_copy(update={"attempt": one.attempt.model_copy(update={"launch": launch})})

    few = [took("ddp", 3.0), took("fsdp", 7.0), took("fsdp", 99.0, launch=2)]
    pair = few[0].attempt, few[1].attempt
    assert auto_budget_s(few, [[pair, pair]]) == 20.0
    assert auto_budget_s([*few, took("zero2", 400.0)], [[pair]]) == 0.25 * 410
    assert auto_budget_s([*few, took("zero2", 100.0)], [[pair], [pair], []]) == 0.25 * 110
    assert auto_budget_s(few, [[pair], [pair], []]) is None
    assert auto_budget_s(few, []) is None
    built = took("zero2", 300.0).model_copy(update={"account": Account(parts_s={"launch": 20.0, "compile": 270.0})})
    assert built.isolation == "fork"
    assert auto_budget_s([few[0], built], [[(few[0].attempt, built.attempt)]]) == 0.25 * 303
    assert auto_budget_s([few[0], few[1], built], [[(few[0].attempt, built.attempt)] * 2]) == 0.25 * 310


def test_precision_is_not_asked_for_where_another_job_measures(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot start: another job measures some of these cells"):
        went_on(tmp_path / "run", [DDP, FSDP], Ordered(), lambda _: [], takes=lambda slug: slug.startswith("ddp"))


def test_it_ends_at_the_limit_of_launches_and_gives_up_on_what_fails(tmp_path: Path) -> None:
    fail = tuple(("fsdp", 1, launch) for launch in range(2, 99))
    ranks = Ordered(fail=fail)
    until, _, _ = went_on(tmp_path / "run", [DDP, FSDP], ranks, wide)
    assert until.ended == "launches"
    counts = Counter(backend for backend, _, _ in ranks.order)
    assert counts == {"ddp": MOST_LAUNCHES, "fsdp": 1 + MOST_FAILED}


def test_a_budget_replaces_the_limit_of_launches(tmp_path: Path) -> None:
    until, made, _ = went_on(tmp_path / "run", [DDP, FSDP], Ordered(), wide, budget_s=800)
    assert until.ended == "budget"
    assert Counter(one[0] for one in made)["ddp"] > MOST_LAUNCHES


def test_without_a_comparison_nothing_is_launched(tmp_path: Path) -> None:
    until, made, _ = went_on(tmp_path / "run", [DDP], Ordered(), lambda _: [])
    assert (until.ended, made) == ("no_pairs", [])


def test_no_folder_of_a_first_launch_has_another_name_than_before() -> None:
    asked = cell("ddp", memory_limit_bytes=LIMIT)
    assert Attempt(cell=asked, batch_per_rank=8).slug == f"{asked.slug}/b8"
    assert Attempt(cell=asked, batch_per_rank=8, short=True).slug == f"{asked.slug}/b8-short"
    assert Attempt(cell=asked, batch_per_rank=8, launch=2).slug == f"{asked.slug}/b8-launch2"
    with pytest.raises(ValueError, match="launch 2 of a short attempt"):
        Attempt(cell=asked, batch_per_rank=8, short=True, launch=2)
