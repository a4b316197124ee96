"""Figures of scripts in reports: as those of a built-in cell, as far as the script gives them."""

import pytest
from examples import cell, launched, rendered, result

from bench.records.cell import Train
from bench.records.outcome import Result, Scripted
from bench.records.script import Script
from bench.report.compare import compare_runs
from bench.report.speedup import compare_axis
from bench.report.summary import summarize

MEANS_S = (0.100, 0.101, 0.099, 0.1005, 0.0995)


def scripted(backend: str, scale: float = 1.0, **figures: object) -> list[Result]:
    """Five launches of a script, of which only the accelerate config and the batch are known."""
    script = Script(command=("train", "{accelerate_config}", "{batch}", "{out}"))
    of = cell(backend, script=script, workload="train.py", options={})
    made = []
    for number, mean_s in enumerate(MEANS_S, 1):
        outcome = Scripted.model_validate({"step_time_s_per_rank": (mean_s * scale,), **figures})
        one = result(outcome, backend=backend, batch=8)
        attempt = one.attempt.model_copy(update={"cell": of, "batch_per_rank": 8})
        one = one.model_copy(update={"attempt": attempt, "isolation": "script", "stated": ("mixed_precision",)})
        made.append(launched(one, number))
    return made


def test_repeated_launches_of_scripts_decide_which_is_faster() -> None:
    summary = summarize([*scripted("ddp"), *scripted("zero2", 1.5)])
    fast, slow = (cell.best for cell in summary.cells)
    assert fast is not None
    assert slow is not None
    assert fast.measured is not None
    assert len(fast.measured.launches) == 5
    assert round(fast.rate, 1) == 160.0
    assert fast.measured.interval is not None
    pairs = compare_axis(summary, "backend").speed_ups
    assert {pair.ratio.basis for pair in pairs} == {"launches"}
    assert {pair.ratio.word for pair in pairs} == {"faster"}
    assert "ddp 1.50×" in rendered([*scripted("ddp"), *scripted("zero2", 1.5)])


def test_bench_compare_judges_the_mean_steps_of_scripts() -> None:
    (pair,) = compare_runs(scripted("ddp"), scripted("ddp", 1.2)).pairs
    assert pair.ratio is not None
    assert (pair.speed, pair.ratio.basis) == ("SLOWER", "launches")
    assert pair.ratio.estimate == pytest.approx(1.2)
    (pair,) = compare_runs(scripted("ddp")[:1], scripted("ddp", 1.2)[:1]).pairs
    assert pair.ratio is not None
    assert (pair.speed, pair.ratio.basis) == ("UNCLEAR", "assumed")
    assert pair.launched, "so more launches decide more"


def test_an_axis_of_a_script_may_have_the_name_of_a_setting_of_training() -> None:
    script = Script(command=("train", "{compile}", "{batch}", "{out}"))
    results = []
    for value in (True, False):
        one = scripted("ddp")[0]
        of = cell("ddp", script=script, workload="train.py", options={"compile": value})
        attempt = one.attempt.model_copy(update={"cell": of})
        axes, stated = {"backend": "ddp", "compile": value}, ("compile",)
        results.append(one.model_copy(update={"attempt": attempt, "axes": axes, "stated": stated}))
    summary = summarize(results)
    assert [one.controlled["compile"] for one in summary.cells] == [True, False]
    assert [one.rows[0].settings["compile"] for one in summary.cells] == [True, False]


def test_an_optimizer_step_has_all_the_batches_that_a_script_accumulates() -> None:
    results = []
    for one in scripted("ddp")[:1]:
        of = one.attempt.cell.model_copy(update={"train": Train(accumulate=4), "options": {"accum": 4}})
        results.append(one.model_copy(update={"attempt": one.attempt.model_copy(update={"cell": of})}))
    (row,) = summarize(results).rows
    assert row.batch_global == 8 * 2 * 4
    assert round(row.rate, 6) == 8 * 2 * 4 / MEANS_S[0]


def test_what_a_script_does_not_state_is_unknown() -> None:
    text = rendered(scripted("ddp", figures={"peak_allocated_bytes_rank_max": 2**30, "capacity_bytes_rank_min": 2**32}))
    assert "A script measures itself" in text
    assert "Steps of the throughput window contain no synchronization" not in text
    assert "Based on 5 launches of the script, and on its own figures." in text
    assert "the command of the matrix" in text
    assert "learning_rate" not in text
    row = next(line for line in text.splitlines() if line.startswith("| ddp "))
    assert "**160**" in row
    assert "25.0 %" in row
    assert "imported" not in text.lower()
