"""Results that should not be trusted without a second look."""

import math
from collections.abc import Iterator
from typing import get_args

import pytest
from examples import CUDA_MACHINE, MACHINE, doubt_sentences, launched, ok, rank, rendered, result, vram, world

from bench.records.conditions import Conditions
from bench.records.outcome import Result
from bench.records.rank_outcome import RankOk
from bench.report.doubts import DOUBT_KINDS, Grade, causes, doubts, may_be_off
from bench.report.rows import Summary
from bench.report.summary import summarize
from bench.report.tables.doubts import TITLE, doubts_section
from bench.report.tables.table import Lines, Table


def test_losses_unlike_those_of_the_others_are_pointed_out() -> None:
    alike = [result(ok(backend=b, losses=(1.0, 0.75, 0.5)), backend=b) for b in ("ddp", "fsdp")]
    off = result(ok(backend="zero2", losses=(1.2, 0.95, 0.7)), backend="zero2")
    assert not [doubt for doubt in doubt_sentences(summarize(alike)) if "losses" in doubt]
    [doubt] = [doubt for doubt in doubt_sentences(summarize([*alike, off])) if "losses" in doubt]
    assert doubt.startswith("zero2, batch 2: its losses differ by")
    near = result(ok(backend="zero2", losses=(1.03, 0.7725, 0.515)), backend="zero2")
    assert len([doubt for doubt in doubt_sentences(summarize([alike[0], near])) if "losses" in doubt]) == 2
    other_samples = result(ok(backend="zero2", losses=(1.2, 0.95, 0.7)), backend="zero2", batch=4)
    assert not [doubt for doubt in doubt_sentences(summarize([*alike, other_samples])) if "losses" in doubt]


@pytest.mark.parametrize("broken", [(math.nan, math.nan, math.nan), (1.0, 0.75, math.inf)])
def test_a_loss_that_is_no_number_says_nothing_of_the_losses_of_others(broken: tuple[float, ...]) -> None:
    nan, right, wrong = (
        result(ok(backend=backend, losses=losses), backend=backend)
        for backend, losses in (("fsdp", broken), ("zero2", (1.0, 0.75, 0.5)), ("ddp", (1.5, 1.125, 0.75)))
    )
    apart = [
        {doubt.row.id for doubt in doubts(summarize(results)) if doubt.row and "losses differ" in doubt.reason}
        for results in ([right, wrong], [nan, right, wrong], [right, nan, wrong], [right, wrong, nan])
    ]
    assert apart == [apart[0]] * 4
    assert len(apart[0]) == 2


def in_dtype(weights: str, losses: tuple[float, ...], backend: str) -> Result:
    """A result whose ranks hold weights in this dtype."""
    outcome = ok(losses=losses)
    regime = outcome.ranks[0].regime.model_copy(update={"weights_dtype": weights})
    ranks = tuple(one.model_copy(update={"regime": regime, "warmup_losses": losses[:1]}) for one in outcome.ranks)
    return result(outcome.model_copy(update={"ranks": ranks}), backend=backend)


def test_losses_of_weights_that_are_rounded_otherwise_may_drift_apart() -> None:
    """A large learning rate: a plain loop over masters made from bf16 weights has the losses of zero, digit for digit,
    and autocast over fp32 weights those of ddp."""
    ddp, fsdp = (in_dtype("float32", (2.945, 2.803, 2.295), backend) for backend in ("ddp", "fsdp"))
    zeros = [in_dtype("bfloat16", (2.945, 2.95, 2.40), backend) for backend in ("zero1", "zero2")]
    for rows in ([ddp, zeros[0]], [ddp, *zeros]):
        summary = summarize(rows)
        assert not any(cell.invalid for cell in summary.cells)
        assert any("rounded otherwise" in doubt for doubt in doubt_sentences(summary))
    wrong: dict[str, list[Result]] = {
        "unlike its kind": [ddp, *zeros, in_dtype("bfloat16", (2.945, 3.1, 2.55), "zero3")],
        "not trained": [ddp, fsdp, in_dtype("bfloat16", (2.945, 3.9, 3.9), "zero3")],
        "other samples": [ddp, fsdp, in_dtype("bfloat16", (3.2, 3.0, 2.5), "zero3")],
    }
    for why, rows in wrong.items():
        cells = summarize(rows).cells
        assert [cell.cell.backend for cell in cells if cell.rows[0].id in cell.invalid] == ["zero3"], why


def test_a_model_of_another_size_is_pointed_out() -> None:
    """accelerate's FSDP2 with cpu_ram_efficient_loading unties weights of models that have no `tie_weights`."""
    outcome = ok()
    regime = outcome.ranks[0].regime.model_copy(update={"parameters": 1200})
    ranks = tuple(one.model_copy(update={"regime": regime}) for one in outcome.ranks)
    untied = result(outcome.model_copy(update={"ranks": ranks}), backend="mine")
    [doubt] = doubt_sentences(summarize([result(), result(backend="fsdp"), untied]))
    assert (
        doubt == "mine, batch 2: its model has 1,200 parameters, and that of other rows with the same settings 1,000."
    )


def test_allocation_retries_are_thrashing() -> None:
    memory = vram(70, 79).model_copy(update={"alloc_retries": 3})
    outcome = world(rank(0, memory=memory), rank(1, memory=memory))
    summary = summarize([result(outcome, machine=CUDA_MACHINE)])
    assert summary.cells[0].best is None
    assert any("6 allocation retries" in doubt for doubt in doubt_sentences(summary))


def test_a_loss_that_is_not_finite_in_any_launch_makes_a_row_invalid() -> None:
    steps_s = (0.1,) * 3, (0.1,) * 3
    each = [result(ok(*steps_s)), result(ok((0.2,) * 3, (0.2,) * 3, losses=(1.0, math.nan, math.nan))), result()]
    summary = summarize([launched(one, number) for number, one in enumerate(each, 1)])
    assert summary.cells[0].invalid
    assert any("launch 2: the loss is not a finite number." in doubt for doubt in doubt_sentences(summary))


def test_a_clean_run_raises_no_flag() -> None:
    assert doubt_sentences(summarize([result(ok((0.1 * batch,)), batch=batch) for batch in (1, 2, 4)])) == []


def test_no_results_raise_no_flag() -> None:
    assert doubts(summarize([])) == ()


def test_a_step_is_held_against_every_smaller_batch() -> None:
    results = [result(ok((step_s,)), batch=batch) for batch, step_s in ((2, 1.0), (4, 0.96), (8, 0.94))]
    assert [flag.partition(":")[0] for flag in doubt_sentences(summarize(results))] == ["ddp, batch 8"]


@pytest.mark.parametrize(("total_s", "flagged"), [(0.1, False), (0.1019, False), (0.103, True), (0.097, True)])
def test_phases_must_sum_to_their_total(total_s: float, flagged: bool) -> None:
    phases_s = (0.005, 0.025, 0.04, 0.01, 0.01, 0.005, 0.005)
    found = doubt_sentences(summarize([result(ok(phases_s=phases_s, totals_s=(total_s, total_s)))]))
    assert bool(found) == flagged
    assert all("phases sum to" in flag for flag in found)


def windows(step_s: float, total_s: float) -> Result:
    """A launch whose steps take ``step_s``, and ``total_s`` in the window with timers."""
    phases_s = tuple(share * total_s for share in (0.05, 0.25, 0.4, 0.1, 0.1, 0.05, 0.05))
    return result(ok((step_s,) * 3, (step_s,) * 3, phases_s=phases_s, totals_s=(total_s, total_s)))


def test_the_timing_windows_of_several_launches_are_compared_by_their_means() -> None:
    """On an H200, one of 12 launches of a step that waits for its host was 26 % slower in its second window."""
    apart = [windows(0.1, 0.13), windows(0.12, 0.11), windows(0.11, 0.1)]
    [words] = doubt_sentences(summarize(apart[:1]))
    assert "with phase timers, steps took 30" in words
    assert doubt_sentences(summarize([launched(one, n) for n, one in enumerate(apart, 1)])) == []
    slower = [launched(windows(0.1, 0.13), n) for n in (1, 2, 3)]
    assert len(doubt_sentences(summarize(slower))) == 1
    even = [launched(windows(step_s, step_s), n) for n, step_s in enumerate((0.1, 0.1, 0.1, 0.2, 0.2), 1)]
    [row] = summarize(even).rows
    assert row.sampled
    assert row.sampled.instrumentation_share == pytest.approx(0)


def test_reserved_below_allocated_is_flagged_on_any_rank() -> None:
    ranks = (rank(0, memory=vram(30, 40)), rank(1, memory=vram(41, 40)))
    assert doubt_sentences(summarize([result(world(*ranks), machine=CUDA_MACHINE)])) == [
        "ddp, batch 2: rank 1 reserved 40.00 GiB, less than the 41.00 GiB it allocated."
    ]


@pytest.mark.parametrize(("slow_s", "flagged"), [(0.109, False), (0.112, True)])
def test_ranks_far_apart_are_flagged(slow_s: float, flagged: bool) -> None:
    found = doubt_sentences(summarize([result(ok((0.1,), (slow_s,)))]))
    assert found == (
        ["ddp, batch 2: rank 1's mean step (112 ms) takes 12.0 % longer than rank 0's (100 ms)."] * flagged
    )


def test_unlike_machines_are_flagged_and_another_commit_is_not() -> None:
    other = MACHINE.model_copy(update={"git_commit": "f" * 40})
    faster = MACHINE.model_copy(update={"cpu": "Other CPU"})
    assert doubt_sentences(summarize([result(), result(machine=other, batch=4)])) == []
    assert (
        "cpu: Example CPU against Other CPU"
        in doubt_sentences(summarize([result(), result(machine=faster, batch=4)]))[0]
    )


def test_a_long_reason_of_a_retry_is_cut() -> None:
    again = result().model_copy(update={"retried": "x" * 5000})
    (doubt,) = doubt_sentences(summarize([again]))
    assert doubt.startswith("ddp, batch 2: second try; the first failed: xxx")
    assert len(doubt) < 500
    again = result().model_copy(update={"retried": "the port was taken."})
    assert doubt_sentences(summarize([again])) == ["ddp, batch 2: second try; the first failed: the port was taken."]


def graded() -> Summary:
    """A row of each grade, the worst last, and one without a doubt."""
    again = result(backend="zero2").model_copy(update={"retried": "no port"})
    apart = result(ok((0.1,) * 3, (0.2,) * 3, backend="fsdp"), backend="fsdp")
    broken = result(ok(losses=(float("nan"), 1.0, 1.0)), batch=4)
    return summarize([result(), again, apart, broken])


def test_every_doubt_has_a_grade_and_the_worst_stands_first() -> None:
    summary = graded()
    assert [doubt.grade for doubt in doubts(summary)] == ["invalid", "inaccurate", "note"] == list(get_args(Grade))
    table = doubts_section(summary)
    assert isinstance(table, Table)
    assert table.headers == ("grade", "row", "why")
    assert [row[:2] for row in table.rows] == [
        ("invalid", "ddp, batch 4"),
        ("inaccurate", "fsdp, batch 2"),
        ("note", "zero2, batch 2"),
    ]
    assert {kind.grade for kind in DOUBT_KINDS} == set(get_args(Grade))


def test_what_a_user_can_remove_is_told_before_what_shows_it() -> None:
    busy = dict.fromkeys(Conditions.model_fields) | {"gpus": (), "others_cpu_share": 0.5}
    steps_s, totals_s = (0.1, 0.1, 0.4), (0.4,) * 2
    one = result(world(*(rank(number, steps_s, totals_s=totals_s) for number in range(2))), batch=4)
    summary = summarize([result(ok((0.3,) * 3)), one.model_copy(update={"conditions": Conditions(**busy)})])
    told = [doubt.reason for doubt in doubts(summary)]
    assert len(told) > 4
    assert (
        causes(summary)[summary.rows[1].id] == told[0] == ("other processes took 50.0 % of the CPU during the attempt.")
    )


def test_a_note_marks_no_row_in_other_tables() -> None:
    summary = graded()
    assert {row_id.batch_per_rank for row_id in may_be_off(summary)} == {2, 4}
    assert len(may_be_off(summary)) == 2
    fine = [result(), result(backend="zero2")]
    marked = [fine[0].model_copy(update={"retried": "no port"}), fine[1]]
    assert "second try" in rendered(marked)
    assert "Caution" not in rendered(marked)
    assert ", doubted" not in rendered(marked)


def test_doubts_of_all_rows_stand_before_those_of_one_within_a_grade() -> None:
    faster = MACHINE.model_copy(update={"cpu": "Other CPU"})
    apart = result(ok((0.1,) * 3, (0.2,) * 3), batch=4)
    table = doubts_section(summarize([apart, result(machine=faster)]))
    assert isinstance(table, Table)
    assert [row[1] == "all" for row in table.rows] == [True, False]


def test_without_a_doubt_the_section_says_so() -> None:
    assert doubts_section(summarize([result()])) == Lines(title=TITLE, lines=("None.",))


def waits(*shares: float) -> Iterator[str]:
    """The doubts about ranks that wait for data during these shares of a step of 100 ms."""
    ranks = (
        rank(number, phases_s=(0.1 * share, 0.1 * (1 - share), 0, 0, 0, 0, 0), totals_s=(0.1, 0.1))
        for number, share in enumerate(shares)
    )
    return (doubt for doubt in doubt_sentences(summarize([result(world(*ranks))])) if "data" in doubt)


@pytest.mark.parametrize(("shares", "who"), [((0.05, 0.1), None), ((0.02, 0.11), 1), ((0.5, 0.3), 0)])
def test_a_starved_loader_is_a_doubt_that_names_the_rank(shares: tuple[float, float], who: int | None) -> None:
    words = f"ddp, batch 2: rank {who} waits for data during {100 * max(shares):.1f} % of its step"
    assert list(waits(*shares)) == ([f"{words}: the loader is too slow."] if who is not None else [])


@pytest.mark.parametrize(("steps", "late"), [(10, True), (2, False)])
def test_a_rank_with_the_shortest_collectives_on_nccl_may_be_late(steps: int, late: bool) -> None:
    def measured(number: int, time_s: float) -> RankOk:
        quick = rank(number, phases_s=(0.01,) * 7, totals_s=(0.07,) * steps, step_times_s=(0.07,) * 3)
        return quick.model_copy(update={"collective_times_s": (time_s,) * steps})

    waiting = world(measured(0, 0.05), measured(1, 0.02))
    found = [doubt for doubt in doubts(summarize([result(waiting, machine=CUDA_MACHINE)])) if "late" in doubt.reason]
    assert len(found) == late
    for doubt in found:
        assert doubt.grade == "note"
        assert doubt.reason.startswith(
            "rank 1 may be late: its collectives are the shortest, so the others may wait 30"
        )
    even = world(measured(0, 0.05), measured(1, 0.05))
    assert not [doubt for doubt in doubts(summarize([result(even, machine=CUDA_MACHINE)])) if "late" in doubt.reason]
