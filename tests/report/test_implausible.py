"""Rows of a model that is not all trained, or whose samples are not all used."""

from typing import Any

import pytest
from examples import FASTER, claim, ok, rendered, result

from bench.records.outcome import Ok, Result
from bench.records.rank_outcome import Coverage, SampleSizes
from bench.report.advice import advise
from bench.report.claims import judge_claims
from bench.report.compare import compare_runs
from bench.report.doubts import doubts
from bench.report.speedup import compare_axis
from bench.report.summary import summarize
from bench.report.tables.advice import advice_sentences

ALL = Coverage(parameters=1000, trainable_parameters=200, without_gradient=0, not_run=0)


def covered(outcome: Ok, **changes: Any) -> Ok:
    found = ALL.model_copy(update=changes)
    return Ok(ranks=tuple(rank.model_copy(update={"coverage": found}) for rank in outcome.ranks))


def row(backend: str = "ddp", step_s: float = 0.1, *, train: dict[str, Any] | None = None, **changes: Any) -> Result:
    outcome = covered(ok((step_s,) * 3, (step_s,) * 3, backend=backend), **changes)
    return result(outcome, backend=backend, train=train or {})


def graded(one: Result) -> list[tuple[str, str]]:
    return [(doubt.grade, doubt.reason) for doubt in doubts(summarize([one]))]


TOWER: dict[str, Any] = {"without_gradient": 170, "without_gradient_names": ("vision_tower",)}
PICTURES = {"dropped_keys": {"pixel_values": "float32"}}


def grown(*peaks_mib: int, sizes: SampleSizes | None = None) -> Result:
    update = {"step_peaks_bytes": tuple(peak * 2**20 for peak in peaks_mib), "sizes": sizes}
    steps = (0.1,) * len(peaks_mib)
    return result(Ok(ranks=tuple(rank.model_copy(update=update) for rank in ok(steps, steps).ranks)))


def test_a_peak_that_grows_late_is_named_with_its_step() -> None:
    late = grown(90, 100, 100, 100, 100, 104)
    said = "rank 0's memory peak still grew in step 6 of 6, by 4.00 MiB: a longer training may need more."
    assert graded(late)[0] == ("note", said)
    assert not graded(grown(60, 90, 100, 100, 101, 102)), "early, or by little"
    assert not graded(grown(90, 100, 104)), "in too few steps"
    largest = SampleSizes(largest_batch=9, largest_measured_batch=8)
    assert not graded(grown(90, 100, 100, 100, 100, 104, sizes=largest)), "a step with the largest samples came after"


@pytest.mark.parametrize(
    ("changes", "grade", "words"),
    [
        (TOWER, "invalid", "85.0 % of the trained parameters (170) get no gradient: vision_tower."),
        ({**TOWER, "without_gradient": 20}, "note", "10.0 % of the trained parameters (20) get no gradient"),
        ({**TOWER, "without_gradient": 21}, "invalid", "10.5 % of the trained parameters"),
        ({**TOWER, **PICTURES}, "invalid", "vision_tower; pixel_values (float32) of the samples are not used."),
        (PICTURES, "note", "forward takes no pixel_values (float32): they are in the samples and not used."),
        (
            {"not_run": 720, "not_run_names": ("tower", "head")},
            "invalid",
            "72.0 % of the parameters (720) are in modules that never run: tower, head.",
        ),
        ({"not_routed": 500}, "note", "50.0 % of the parameters are in modules, such as experts, to which"),
    ],
)
def test_what_is_left_out_is_said_with_its_share(changes: dict[str, Any], grade: str, words: str) -> None:
    [(found, reason)] = graded(row(**changes))
    assert found == grade
    assert words in reason


def test_a_module_that_neither_runs_nor_is_trained_is_said_once() -> None:
    [(_, reason)] = graded(row(**TOWER, not_run=700, not_run_names=("vision_tower",)))
    assert "get no gradient" in reason


@pytest.mark.parametrize("changes", [{}, {"without_gradient": None, "not_run": None}])
def test_a_model_that_is_all_trained_is_not_doubted(changes: dict[str, Any]) -> None:
    assert graded(row(**changes)) == []
    assert graded(result()) == []


def test_a_cell_may_allow_it() -> None:
    [(grade, _)] = graded(row(train={"allow_unused": True}, **TOWER))
    assert grade == "note"


def test_an_invalid_row_is_not_recommended_and_wins_no_comparison() -> None:
    sound, invalid = row("ddp"), row("zero2", 0.05, **TOWER)
    summary = summarize([sound, invalid])
    [advice] = advise(summary)
    assert advice.chosen is not None
    assert advice.chosen.settings["backend"] == "ddp"
    assert "zero2: its rows are invalid" in " ".join(advice_sentences(summary, [advice]))
    assert compare_axis(summary).speed_ups == ()
    [judged] = judge_claims(summary, [claim(**FASTER)])
    assert (judged.verdict, judged.missing) == ("NOT TESTED", "zero2: what was measured there is invalid")
    assert "| invalid |" in rendered([sound, invalid])


def test_where_all_rows_are_invalid_nothing_is_recommended_and_that_is_said() -> None:
    summary = summarize([row(**TOWER)])
    [sentence] = advice_sentences(summary, advise(summary))
    assert sentence == 'no row to recommend: the measured ones are invalid, see "Rows to doubt".'


def test_losses_unlike_those_of_the_others_decide_nothing() -> None:
    alike = [result(ok(backend=b, losses=(1.0, 0.75, 0.5)), backend=b) for b in ("ddp", "fsdp")]
    off = result(ok((0.05,) * 3, (0.05,) * 3, backend="zero2", losses=(1.2, 0.95, 0.7)), backend="zero2")
    [advice] = advise(summarize([*alike, off]))
    assert advice.chosen is not None
    assert advice.chosen.settings["backend"] != "zero2"


def test_a_comparison_of_two_runs_says_which_is_invalid() -> None:
    sound, invalid = row(), row(**TOWER)
    [pair] = compare_runs([sound], [invalid]).pairs
    assert [words.partition(":")[0] for words in pair.unlike] == ["head is invalid"]
    assert compare_runs([sound], [sound]).unlike == ()
