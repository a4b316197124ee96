"""Several launches of one attempt: one row, one ratio, one word."""

import math
import random
import re
from collections.abc import Sequence
from typing import Any

import pytest
from examples import CUDA_MACHINE, MACHINE, doubt_sentences, launched, ok, result, rss

from bench.records.calibration import Calibration
from bench.records.outcome import Failed, Hang, Oom, Result
from bench.report.advice import advise
from bench.report.compare import compare_runs
from bench.report.rows import Sampled
from bench.report.speedup import compare_axis
from bench.report.summary import summarize
from bench.report.tables.advice import advice_sentences
from bench.report.tables.export import records
from bench.report.tables.raw_matrix import matrix
from bench.report.tables.speedup import faster
from bench.statistics.intervals import student_t
from bench.statistics.launches import launch_of


def test_the_launches_of_an_attempt_are_one_row_with_the_mean_of_their_steps_and_the_largest_peaks() -> None:
    slow = result(ok((0.2,) * 3, (0.1,) * 3, memory=rss(2.0)))
    (row,) = summarize([result(), launched(slow, 2), launched(result(ok((0.1,) * 3, (0.12,) * 3)), 3)]).rows
    assert isinstance(row.measured, Sampled)
    assert row.measured.step_time_s_rank_max == pytest.approx((0.1 + 0.2 + 0.1) / 3)
    assert row.rate == pytest.approx(2 * 2 / ((0.1 + 0.2 + 0.12) / 3))  # of the slowest rank of each launch
    assert row.measured.figures["peak_rss_bytes_rank_max"] == rss(2.0).peak_rss_bytes
    assert row.measured.slowest.step.samples_s == (0.1,) * 3 + (0.2,) * 3 + (0.12,) * 3
    each = [launch.measured for launch in row.launches]
    assert [one.slowest.step.samples_s[0] for one in each if isinstance(one, Sampled)] == [0.1, 0.2, 0.12]
    assert [launch.number for launch in row.measured.launches] == [1, 2, 3]
    table = matrix(summarize([result(), launched(slow, 2)]))
    assert table.rows[0][table.headers.index("launches")] == "2"
    assert "launches" not in matrix(summarize([result()])).headers


def test_a_launch_that_failed_is_data_and_a_reason_for_doubt() -> None:
    failures = [Oom(rank=1, phase="bwd", reason="no memory"), Hang(reason="no result within 60 s")]
    lost = [
        launched(result(outcome, measure=result().attempt.cell.measure), n) for n, outcome in enumerate(failures, 4)
    ]
    summary = summarize([result(), launched(result(), 2), launched(result(), 3), *lost])
    (row,) = summary.rows
    assert (row.outcome, len(row.failures)) == ("ok", 2)
    assert row.reason == "3 of 5 launches; 1 oom, 1 hang: rank 1 in bwd: no memory"
    assert any("3 of 5 launches; 1 oom, 1 hang" in line for line in doubt_sentences(summary))
    table = matrix(summary)
    assert table.rows[0][table.headers.index("launches")] == "3 of 5"
    (record,) = records(summary)
    assert (record["launches"], record["launches_failed"]) == (3, 2)


def test_launches_that_all_failed_are_one_failed_row() -> None:
    failed = result(Failed(rank=0, phase="start", reason="x"))
    (row,) = summarize([failed, launched(failed, 2)]).rows
    assert (row.outcome, row.measured, row.failures) == ("failed", None, ())
    assert doubt_sentences(summarize([failed, launched(failed, 2)])) == []


def test_two_results_of_one_launch_stay_two_rows() -> None:
    assert len(summarize([result(), result()]).rows) == 2


def disturbed(source: random.Random, share: float) -> tuple[float, ...]:
    """Steps of about 100 ms, some of which another process lengthens."""
    return tuple(0.1 * math.exp(source.gauss(0, 0.01)) * (1.5 if source.random() < share else 1.0) for _ in range(50))


def test_the_report_and_bench_compare_give_one_interval_for_the_same_samples() -> None:
    """The report once called a winner of 1.07× (1.02 to 1.13) where `bench compare` said UNCLEAR, 0.98 to 1.08."""
    source = random.Random(2)
    quick, slow = disturbed(source, 0.2), tuple(1.06 * step_s for step_s in disturbed(source, 0.25))
    cells = summarize([result(ok(quick, quick)), result(ok(slow, slow, backend="fsdp"), backend="fsdp")])
    within = compare_axis(cells, reference="fsdp").speed_ups[0].ratio
    (pair,) = compare_runs([result(ok(quick, quick))], [result(ok(slow, slow))]).pairs
    assert (pair.means.estimate, pair.means.interval) == (within.estimate, within.interval)
    assert pair.ratio is not None
    assert pair.means.estimate == pytest.approx(pair.ratio.of_means)
    steps_alone = math.hypot(*(student_t(9, 0.95) * (launch_of(steps).error or 0) for steps in (quick, slow)))
    assert within.estimate * math.exp(-steps_alone) > 1  # what the report once called a winner
    assert (within.word, pair.speed) == ("too close to call", "UNCLEAR")


def test_the_report_and_bench_compare_agree_over_launches_too() -> None:
    def launches(scale: float, **changes: Any) -> list[Result]:
        source = random.Random(3)
        times = [tuple(scale * step_s for step_s in disturbed(source, 0.1)) for _ in range(5)]
        return [launched(result(ok(each, each, **changes), **changes), n) for n, each in enumerate(times, 1)]

    cells = summarize([*launches(1.0), *launches(1.1, backend="fsdp")])
    within = compare_axis(cells, reference="fsdp").speed_ups[0].ratio
    (pair,) = compare_runs(launches(1.0), launches(1.1)).pairs
    assert (pair.means.word, within.word) == ("faster", "faster")
    assert pair.means.interval[0] < within.interval[0], "two runs are made at other times, and share no rounds"
    assert pair.ratio is not None
    assert pair.ratio.estimate == pytest.approx(1.1)
    assert pair.means.estimate == pytest.approx(within.estimate)


SCATTERED = (1.0, 1.01, 0.99, 1.005, 0.995)
"""Of the launches of a cell."""


def cell_of(scale: float, backend: str, batch: int = 2, scattered: Sequence[float] = SCATTERED) -> list[Result]:
    """Launches of a cell, whose steps take ``scale`` times 100 ms."""
    steps = [(0.1 * scale * level,) * 20 for level in scattered]
    return [
        launched(result(ok(each, each, backend=backend), backend=backend, batch=batch), number)
        for number, each in enumerate(steps, 1)
    ]


def verdict(results: list[Result]) -> tuple[str, list[str]]:
    """The first line of the table, and its notes."""
    summary = summarize(results)
    shown = faster(summary, compare_axis(summary))
    return shown.rows[0][shown.headers.index("faster")], list(shown.notes)


def test_launches_decide_and_the_table_says_on_what_it_rests() -> None:
    line, notes = verdict([*cell_of(1.0, "ddp"), *cell_of(1.2, "fsdp", scattered=SCATTERED[::-1])])
    assert re.fullmatch(r"ddp 1\.20× \(1\.1\d to 1\.2\d\)", line)
    assert "A name alone: this side is faster, with 99.0 % confidence for this comparison." in notes
    line, notes = verdict([*cell_of(1.0, "ddp"), *cell_of(1.0, "fsdp", scattered=SCATTERED[::-1])])
    assert line.startswith("even, 1.00× (0.9")
    assert "Even: the interval lies within 5.0 % of 1." in notes


def test_one_launch_wins_by_an_assumed_variation_and_the_table_says_up_to_which() -> None:
    once = [*cell_of(1.0, "ddp")[:1], *cell_of(1.5, "fsdp")[:1]]
    line, notes = verdict(once)
    assert line.startswith("ddp 1.50× (")
    assert any("assumes that launches vary by 5.0 %" in note for note in notes)
    assert any("`bench run` with measure.launches=5, or `bench calibrate`" in note for note in notes)
    assert any("all winners hold unless it is more than 9.0 %" in note for note in notes)  # ln 1.5 / (3.169 sqrt 2)
    assert verdict([*once[:1], *cell_of(1.1, "fsdp")[:1]])[0].startswith("too close to call, ddp 1.10× (")


def test_repeated_launches_of_another_cell_tell_how_much_the_machine_scatters() -> None:
    once = [*cell_of(1.0, "ddp")[:1], *cell_of(1.5, "fsdp")[:1]]
    line, notes = verdict([*once, *cell_of(4.0, "ddp", batch=4)])
    assert line.startswith("ddp 1.50× (")
    assert any("repeated launches of this run, 4 degrees of freedom" in note for note in notes)
    loud = cell_of(4.0, "ddp", batch=4, scattered=(1.0, 1.4, 0.7, 1.2, 0.8))
    assert verdict([*once, *loud])[0].startswith("too close to call, ddp 1.50× (")


def test_a_calibration_of_this_machine_tells_it_too_and_that_of_another_does_not() -> None:
    once = [*cell_of(1.0, "ddp")[:1], *cell_of(1.5, "fsdp")[:1]]
    learnt = Calibration(machine=MACHINE, measured_at="2030-01-02T03:04:05Z", cells=2, launches=10, sd=0.01, degrees=18)
    summary = summarize(once, [learnt])
    assert compare_axis(summary).speed_ups[0].ratio.word == "faster"
    notes = faster(summary, compare_axis(summary)).notes
    assert any("1.0 % (`bench calibrate` on 2030-01-02, 18 degrees of freedom)" in note for note in notes)
    elsewhere = learnt.model_copy(update={"machine": CUDA_MACHINE})
    assert compare_axis(summarize(once, [elsewhere])).speed_ups[0].ratio.basis == "assumed"


def test_a_batch_that_is_even_with_the_best_is_named() -> None:
    # twice the batch in twice the time
    larger = cell_of(1.99, "ddp", batch=4, scattered=SCATTERED[::-1])
    summary = summarize([*cell_of(1.0, "ddp"), *larger, *cell_of(1.5, "fsdp", scattered=(1.0,))])
    shown = faster(summary, compare_axis(summary))
    assert shown.rows[0][shown.headers.index("batch A")] == "4 (even with 2)"
    assert "Even with batch 2 (1.01×" in advice_sentences(summary, advise(summary))[1]
