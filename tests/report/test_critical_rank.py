"""Which rank gates a step, from stored results, and what the report says about it."""

from collections.abc import Sequence

import pytest

from bench.records.outcome import Result
from bench.records.phases import PHASE_NAMES
from bench.records.rank_outcome import RankOk
from bench.report.critical_rank import CriticalRank, critical_rank
from bench.report.doubts import doubts
from bench.report.summary import summarize
from bench.report.tables.steps import own_work, steps
from tests.examples import launched, rank, rendered, result, world

ALIKE = (0.01, 0.02, 0.04, 0.01, 0.01, 0.005, 0.005)


def one(number: int, phases_s: Sequence[float], own_s: Sequence[float], steps: int = 20) -> RankOk:
    """A rank with the same phase times in every step of the phase window, and its own work in them."""
    made = rank(number, (sum(phases_s),) * 3, phases_s=phases_s, totals_s=(sum(phases_s),) * steps)
    work = {name: (seconds,) * steps for name, seconds in zip(PHASE_NAMES, own_s, strict=True)}
    return made.model_copy(update={"own_work_s": work})


def late_loader(steps: int = 20) -> Result:
    """DDP: rank 1's loader takes 100 ms longer, and rank 0 spends them in the all-reduces of backward."""
    waits = (0.01, 0.02, 0.14, 0.01, 0.01, 0.005, 0.005)
    late = (0.11, 0.02, 0.04, 0.01, 0.01, 0.005, 0.005)
    own = (*ALIKE[:2], 0.03, *ALIKE[3:])
    return result(world(one(0, waits, own, steps), one(1, late, (0.11, *own[1:]), steps)))


def critical_rank_of(stored: Result) -> CriticalRank:
    found = critical_rank(stored.outcome.ranks)  # type: ignore[union-attr]  it is measured
    assert found
    return found


def test_the_rank_whose_loader_is_late_gates_not_the_one_that_waits_in_backward() -> None:
    assert critical_rank_of(late_loader()).words == "rank 1, by 100 ms in dataload_wait"
    (doubt,) = doubts(summarize([late_loader()]))
    assert doubt.reason == (
        "rank 1 is a straggler: the others wait 100 ms a step for it (50.0 % of the step), most of all for its"
        " dataload_wait (late in 20 of 20 phase steps)."
    )


def test_every_phase_shows_its_spread_own_work_and_who_is_last() -> None:
    table = own_work(summarize([late_loader()]))
    shown = {row[table.headers.index("phase")]: row[-8:] for row in table.rows}
    assert shown["dataload_wait"] == ("10.00", "60.00", "110", "1", "10.00", "60.00", "110", "1")
    assert shown["bwd"] == ("40.00", "90.00", "140", "0", "30.00", "30.00", "30.00", "0")
    assert list(shown) == [*PHASE_NAMES, "total"]


def test_ranks_that_are_alike_show_no_straggler() -> None:
    alike = result(world(one(0, ALIKE, ALIKE), one(1, ALIKE, ALIKE)))
    assert critical_rank_of(alike).words == "no single rank"
    assert not doubts(summarize([alike]))


def test_too_few_phase_steps_name_nobody_and_say_so() -> None:
    found = critical_rank_of(late_loader(2))
    assert found.straggler is None
    assert found.words == "n/a (needs measure.phase_steps=20)"


@pytest.mark.parametrize("n_steps", [3, 5, 10])
def test_few_phase_steps_name_a_large_straggler_and_say_what_they_may_miss(n_steps: int) -> None:
    assert critical_rank_of(late_loader(n_steps)).words == "rank 1, by 100 ms in dataload_wait"
    alike = critical_rank_of(result(world(*(one(number, ALIKE, ALIKE, n_steps) for number in range(2)))))
    assert alike.words == "no single rank; a small cost needs phase_steps=20"


def test_results_of_before_show_the_spread_and_say_what_is_unknown() -> None:
    """A bench without own work stored the phases of every rank, so these can be shown."""
    before = result()
    found = critical_rank_of(before)
    assert found.words == "n/a (own work not recorded)"
    assert all(phase.own_s is None for phase in found.phases)
    assert "n/a (own work not recorded)" in str(steps(summarize([before])).rows)


def test_a_phase_whose_waiting_is_unknown_is_left_out() -> None:
    """On NCCL, collectives block the device and not the host: their phases have no own work."""
    known = ("dataload_wait", "forward", "optim_step")
    stored = late_loader()
    ranks = [
        each.model_copy(update={"own_work_s": {name: each.own_work_s[name] for name in known}})
        for each in stored.outcome.ranks  # type: ignore[union-attr]  it is measured
    ]
    found = critical_rank(ranks)
    assert found
    assert found.words == "rank 1, by 100 ms in dataload_wait"
    assert {phase.name for phase in found.phases if phase.own_s} == set(known)
    (doubt,) = doubts(summarize([stored.model_copy(update={"outcome": world(*ranks)})]))
    assert "the others wait at most 100 ms a step for it" in doubt.reason  # it may be ahead in backward
    forward = [each.model_copy(update={"own_work_s": {"forward": each.own_work_s["forward"]}}) for each in ranks]
    alike = critical_rank(forward)
    assert alike
    assert alike.words == "no single rank in forward"


def test_a_straggler_of_any_launch_is_named_with_the_launch() -> None:
    """The row shows the phases of its middle launch, here one without a straggler."""
    alike = result(world(one(0, ALIKE, ALIKE), one(1, ALIKE, ALIKE)))
    launches = [launched(stored, number) for number, stored in enumerate((alike, late_loader(), alike), 1)]
    reasons = [doubt.reason for doubt in doubts(summarize(launches)) if "straggler" in doubt.reason]
    assert len(reasons) == 1
    assert reasons[0].startswith("launch 2: rank 1 is a straggler")


def test_one_rank_waits_for_nobody() -> None:
    assert critical_rank([rank(0)]) is None


def test_without_a_phase_window_there_is_nothing_to_show() -> None:
    assert critical_rank([rank(0, totals_s=()), rank(1, totals_s=())]) is None


def test_the_report_has_it_in_steps_and_in_doubts() -> None:
    text = rendered([late_loader()])
    assert "| slowest rank" in text
    assert "rank 1, by 100 ms in dataload_wait" in text
    assert "rank 1 is a straggler" in text
    assert "Own work of ranks, ms" in text
