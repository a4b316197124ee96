"""Observed scripts in reports: rates of what was seen, doubts with both numbers, and unlike comparisons."""

from examples import cell, rank, rendered, result

from bench.records.observed import Observed
from bench.records.outcome import Ok, Result
from bench.records.rank_outcome import RankOk
from bench.records.script import Script
from bench.report.compare import _ran_unlike
from bench.report.doubts import doubts
from bench.report.summary import summarize
from bench.report.tables.brief import settings_table
from bench.report.tables.sections import Report
from bench.report.tables.table import Lines

SCRIPT = Script(command=("torchrun", "train.py", "{batch}"))


def observed(batch: int = 8, **given: object) -> Result:
    """Three steps of two ranks of a script."""
    seen = {"samples": 3 * batch, "forwards": 3, "optimizer": "AdamW", **given}
    changes = {"observed": Observed.model_validate(seen), "losses": (), "warmup_losses": (), "phase_times_s": {}}
    ranks: list[RankOk] = [rank(number).model_copy(update=changes) for number in (0, 1)]
    one = result(Ok(ranks=(rank(0), rank(1))), backend="ddp", batch=batch)
    of = cell("ddp", script=SCRIPT, workload="train.py", options={})
    attempt = one.attempt.model_copy(update={"cell": of, "batch_per_rank": batch})
    changed = {
        "outcome": Ok(ranks=tuple(ranks)),
        "attempt": attempt,
        "isolation": "script",
        "stated": ("warmup_steps", "steps"),
    }
    return Result.model_validate(one.model_copy(update=changed).model_dump())


def test_its_rate_counts_the_samples_that_were_seen() -> None:
    (row,) = summarize([observed()]).rows
    assert round(row.rate, 6) == 160.0
    (row,) = summarize([observed(samples=96, forwards=12)]).rows
    assert (round(row.rate, 6), row.batch_global) == (640.0, 64)


def test_other_samples_are_a_doubt_and_accumulation_is_a_note() -> None:
    ignores = [(doubt.grade, doubt.reason) for doubt in doubts(summarize([observed(samples=9)]))]
    words = "its model took 3 samples per forward, and the matrix says 8; its figures count what was seen."
    assert ("inaccurate", f"every rank: {words}") in ignores
    accumulates = [(doubt.grade, doubt.reason) for doubt in doubts(summarize([observed(samples=96, forwards=12)]))]
    words = "a step had 4 forwards, and the matrix says 1; its figures count what was seen."
    assert ("note", f"every rank: {words}") in accumulates
    assert len([reason for _, reason in accumulates if words in reason]) == 1
    evaluates = [doubt.reason for doubt in doubts(summarize([observed(loaded_samples=48)])) if doubt.grade == "note"]
    assert any("its DataLoaders gave it 16 samples a step, and its model trained on 8: " in one for one in evaluates)
    assert not doubts(summarize([observed(loaded_samples=32)]))  # loaders may be ahead
    assert not [doubt for doubt in doubts(summarize([observed()])) if "what was seen" in doubt.reason]


def test_the_short_report_says_where_only_forwards_show_the_samples() -> None:
    """A closure of an optimizer that runs several times, or a cell that is called for each of many time steps."""

    def told(**given: object) -> list[str]:
        report = Report(results=[observed(**given)], probes=())
        lines = [line for part in report.brief if isinstance(part, Lines) for line in part.lines]
        return [line for line in lines if "micro-batch:" in line]

    assert told() == []
    assert told(samples=96, forwards=12, loaded_samples=96) == []
    [words] = told(samples=96, forwards=12)
    assert words.endswith(
        "a step had 4 forwards, and the matrix says 1. Each counts as a micro-batch: if several are of the same"
        " samples, samples/s is too high."
    )


def test_of_one_cell_the_short_report_has_each_batch_and_its_accumulation() -> None:
    report = Report(results=[observed(samples=48, forwards=6), observed(16, samples=96, forwards=6)], probes=())
    table = settings_table(report.summary, report.settings)
    assert table.headers[:4] == ("backend", "batch", "accumulate", "samples/s")
    assert [row[1:3] for row in table.rows] == [("16", "2"), ("8", "2")]


def test_a_report_says_that_it_was_observed() -> None:
    text = rendered([observed()])
    assert "bench measures a script from outside" in text
    assert "A script measures itself" not in text


def test_a_report_without_losses_and_phases_has_all_sections() -> None:
    text = rendered([observed(), observed(16)])
    assert "first loss" in text


def test_unlike_steps_are_not_compared() -> None:
    assert list(_ran_unlike(observed(), observed())) == []
    unlike = list(_ran_unlike(observed(), observed(optimizer="SGD", samples=96, forwards=12)))
    assert "optimizer: AdamW against SGD" in unlike
    assert "samples per step: 8.0 against 32.0" in unlike
    assert "forwards per step: 1.0 against 4.0" in unlike
