"""The same measurements get the same word from a report, its advice, a claim and `bench compare`."""

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from examples import MACHINE, claim, launched, ok, result
from typer.testing import CliRunner

from bench.cli.app import app
from bench.records.calibration import Calibration
from bench.records.conditions import Conditions
from bench.records.outcome import Result
from bench.report.advice import advise
from bench.report.claims import judge_claims
from bench.report.compare import compare_runs
from bench.report.doubts import may_be_off
from bench.report.rows import RowId
from bench.report.speedup import compare_axis
from bench.report.summary import summarize
from bench.report.tables.brief import answer_section, settings
from bench.report.tables.charts import ratios, throughput
from bench.report.tables.sections import Choices, Report
from bench.report.tables.speedup import faster
from bench.statistics.intervals import student_t
from bench.statistics.launches import LaunchVariation
from bench.statistics.verdict import EVEN, FASTER, TOO_CLOSE, UNDECIDED
from bench.store.run_folder import Store
from bench.units import rate

VARY = (0.0, 0.6, -1.0, 1.0, -0.6)
"""Of launches, in standard deviations that the pair gives."""
PAIRS = [
    # head's step in units of base's, launches of each side, standard deviation between launches
    (1.0, 5, 0.005, EVEN),
    (1.01, 5, 0.005, EVEN),
    (1.12, 5, 0.005, FASTER),
    (0.85, 5, 0.005, FASTER),
    (1.12, 3, 0.05, TOO_CLOSE),
    (1.04, 1, 0.0, TOO_CLOSE),
    (1.2, 1, 0.0, TOO_CLOSE),
    (1.39, 1, 0.0, FASTER),
    (1.97, 1, 0.0, FASTER),
    (0.6, 2, 0.0, FASTER),
]
BY_SPEED = {"SAME": EVEN, "SLOWER": FASTER, "FASTER": FASTER, "UNCLEAR": TOO_CLOSE}


def launches(step_s: float, n: int, sd: float, backend: str = "ddp", *, turned: bool = False) -> list[Result]:
    """Launches whose steps do not vary; ``turned``: those of the other side vary the other way."""
    vary = [-each if turned else each for each in VARY[:n]]
    steps = [step_s * math.exp(sd * each) for each in vary]
    return [
        launched(result(ok((each,) * 50, (each,) * 50, backend=backend), backend=backend), number)
        for number, each in enumerate(steps, 1)
    ]


@pytest.mark.parametrize(("times", "n", "sd", "word"), PAIRS)
def test_four_places_say_the_same_word(times: float, n: int, sd: float, word: str) -> None:
    base, head = launches(0.1, n, sd), launches(0.1 * times, n, sd, turned=True)
    cells = summarize([*base, *launches(0.1 * times, n, sd, "zero2", turned=True)])
    (report, *_) = compare_axis(cells).speed_ups
    (advice,) = advise(cells, [])
    (compare,) = compare_runs(base, head).pairs
    assert report.ratio.word == word
    low, high = report.ratio.decides
    assert word == EVEN or (low <= 1 <= high) == (word == TOO_CLOSE)
    assert {rival.ratio.word for rival in advice.rivals} == {word}
    assert BY_SPEED[compare.speed] == word
    assert compare.decides is not None
    low, high = compare.decides
    inside, outside = 1 / 1.05 <= low < high <= 1.05, low > 1.05 or high < 1 / 1.05
    assert (inside, outside) == (compare.speed == "SAME", compare.speed in ("SLOWER", "FASTER"))
    bounds: Sequence[dict[str, float]] = ({"at_least": 1.0}, {"at_most": 1.0}, {"at_least": 1 / 1.05, "at_most": 1.05})
    judged = [judge_claims(cells, [claim(ratio=bound)])[0].verdict for bound in bounds]
    assert ("CONFIRMED" in judged[:2]) == (word == FASTER)
    if word == TOO_CLOSE:
        assert judged == ["UNDECIDED"] * 3


def test_one_pair_has_one_interval_and_one_word_in_a_report() -> None:
    """Near a limit, the number of comparisons decides: of the advice, the table of backends, the settings, a claim."""
    ours, words = claim(of={"backend": "ddp"}, against={"backend": "fsdp"}, where={"batch": 8}), set()
    for times in (1.25, 1.3, 1.35, 1.4, 1.45, 1.5):
        steps = {("ddp", 2): 0.1, ("ddp", 4): 0.16, ("ddp", 8): 0.24, ("fsdp", 8): 0.24 * times}
        steps["zero2", 8] = 0.456
        results = [result(ok((s,) * 5, (s,) * 5, backend=of), backend=of, batch=n) for (of, n), s in steps.items()]
        report = Report(results=results, choices=Choices(claims=(ours,)))
        (task,), (judged,) = report.advice, report.judged
        found = [(pair.pair, pair.ratio) for pair in task.rivals]
        found += [(pair.pair, pair.ratio.inverse) for pair in report.comparison.speed_ups]
        found += [
            (frozenset({one.shown.id, task.chosen.id}), one.ratio.inverse)
            for one in report.settings
            if one.ratio and task.chosen
        ]
        said: dict[frozenset[RowId], set[tuple[str, ...]]] = {}
        for pair, ratio in found:
            said.setdefault(pair, set()).add((ratio.word, *(f"{end:.6f}" for end in ratio.decides)))
        assert {len(each) for each in said.values()} == {1}
        ((word, *interval),) = said[frozenset(side.row.id for side in (judged.of, judged.against) if side)]
        assert [f"{end:.6f}" for end in judged.interval or ()] == interval
        assert (judged.verdict == "CONFIRMED") == (word == FASTER)
        words.add(word)
    assert words == {TOO_CLOSE, FASTER}


@pytest.mark.parametrize(("times", "n", "sd", "word"), PAIRS)
def test_the_chart_of_ratios_draws_the_interval_and_the_word_of_the_verdict(
    times: float, n: int, sd: float, word: str
) -> None:
    cells = summarize([*launches(0.1, n, sd), *launches(0.1 * times, n, sd, "zero2", turned=True)])
    (advice,) = advise(cells, [])
    (rival,) = advice.rivals
    drawn = [ratio for ratio in ratios(cells, settings(cells, [advice])).ratios if ratio.interval]
    assert [ratio.interval for ratio in drawn] == [pytest.approx(rival.ratio.inverse.decides)]
    assert [ratio.hollow for ratio in drawn] == [not rival.ratio.decided]
    assert drawn[0].words.endswith("slower" if word == FASTER else word)


@pytest.mark.parametrize("known", [None, LaunchVariation(sd=0.02, degrees=30, source="bench calibrate")])
def test_charts_and_show_have_the_interval_of_what_launches_vary_by(
    known: LaunchVariation | None, tmp_path: Path
) -> None:
    """Steps that do not vary make no narrow interval: a verdict on one launch allows for 5 %, or what is known."""
    [once] = launches(0.1, 1, 0.0)
    learnt = known and Calibration(
        machine=MACHINE, measured_at="2026-01-01T00:00:00", cells=1, launches=31, sd=known.sd, degrees=known.degrees
    )
    by = math.exp(student_t(known.degrees, 0.95) * known.sd if known else student_t(10, 0.95) * 0.05)
    [panel] = throughput(summarize([once], [learnt] if learnt else [])).panels
    [point] = panel.lines[0].points
    assert point.interval == pytest.approx((point.y / by, point.y * by))
    store = Store(tmp_path / "run")
    with store.open(MACHINE, [once.attempt.cell], ""):
        store.begin(once.attempt)
        store.finish(once)
        if learnt:
            store.keep_calibration(learnt)
    shown = CliRunner().invoke(app, ["show", once.attempt.cell.slug, str(store.root)], env={"COLUMNS": "300"})
    assert f"{rate(point.y / by)} to {rate(point.y * by)}" in shown.output


@pytest.mark.parametrize(
    ("step_s", "word", "lead"), [(0.05, FASTER, "Train with"), (0.09, UNDECIDED, "No sure answer")]
)
def test_a_doubt_of_known_size_leaves_what_is_far_beyond_it(step_s: float, word: str, lead: str) -> None:
    """The mean step of the faster side is a quarter above its median: it may be off by that, and not by more."""
    busy = tuple(step_s * (0.8 if number % 4 else 1.6) for number in range(48))
    calm = (0.12,) * 48
    summary = summarize([result(ok(calm, calm)), result(ok(busy, busy, backend="zero2"), backend="zero2")])
    assert list(may_be_off(summary).values()) == pytest.approx([0.25])
    (report, *_) = compare_axis(summary).speed_ups
    assert report.ratio.word == word
    (advice,) = advise(summary, [])
    assert answer_section(summary, [advice], {}, []).title.startswith(lead)


@pytest.mark.parametrize(("n_disturbed", "word"), [(1, FASTER), (3, UNDECIDED)])
def test_a_few_disturbed_launches_of_many_leave_what_is_far_beyond_them(n_disturbed: int, word: str) -> None:
    unknown = {name: None for name in Conditions.model_fields if name != "gpus"}
    busy = Conditions.model_validate({**unknown, "others_cpu_share": 0.5})
    base, head = launches(0.1, 5, 0.005), launches(0.12, 5, 0.005, "zero2", turned=True)
    head[:n_disturbed] = [each.model_copy(update={"conditions": busy}) for each in head[:n_disturbed]]
    summary = summarize([*base, *head])
    (off,) = may_be_off(summary).values()
    assert (off < 0.005) == (word == FASTER), "as much as the disturbed launch moves the mean"
    (report, *_) = compare_axis(summary).speed_ups
    assert report.ratio.word == word


def test_launches_that_differ_by_more_than_is_assumed_count() -> None:
    """Of one setting, launched twice: 0.1 and 0.17 s. What would be clear with 5 % is not, for no pair of rows."""
    slower = [result(ok((s,) * 5, (s,) * 5, backend=of), backend=of) for of, s in (("fsdp", 0.25), ("zero2", 0.4))]
    once, again = (result(ok((s,) * 5, (s,) * 5)) for s in (0.1, 0.17))
    for results, words in (([once], {FASTER}), ([once, launched(again, 2)], {TOO_CLOSE})):
        summary = summarize([*results, *slower])
        assert {pair.ratio.word for pair in compare_axis(summary).speed_ups if not pair.matched} == words
    notes = faster(summary, compare_axis(summary)).notes
    assert any("differ by 37.5 % (the one repeated launch of this run" in note for note in notes)
    learnt = Calibration(machine=MACHINE, measured_at="2026-01-01T00:00:00", cells=1, launches=31, sd=0.02, degrees=30)
    assert summarize([once, launched(again, 2), *slower], [learnt]).variations[0].sd == 0.02


@pytest.mark.parametrize(("n_disturbed", "base_s", "word"), [(1, 0.2, FASTER), (5, 0.13, UNDECIDED)])
def test_steps_that_took_long_in_one_launch_of_many_count_as_one_of_many(
    n_disturbed: int, base_s: float, word: str
) -> None:
    """A launch in which one of four steps took twice as long: its mean is a quarter above the median."""
    calm, busy = (base_s,) * 48, tuple(0.096 * (2 if number % 4 == 0 else 1) for number in range(48))
    calms = [calm] * 4 + [tuple(1.0001 * step_s for step_s in calm)]
    base = [launched(result(ok(each, each)), number) for number, each in enumerate(calms, 1)]
    steps = [busy] * n_disturbed + [(0.1,) * 48] * (5 - n_disturbed)
    head = [
        launched(result(ok(each, each, backend="zero2"), backend="zero2"), number)
        for number, each in enumerate(steps, 1)
    ]
    summary = summarize([*base, *head])
    assert list(may_be_off(summary).values()) == pytest.approx([0.25 if n_disturbed == 5 else 0.024 / 0.496])
    (report, *_) = compare_axis(summary).speed_ups
    assert report.ratio.word == word
