"""Ratios of typical steps: arithmetic by hand and against scipy, and verdicts on invented noise."""

import math
import random
import statistics
from collections.abc import Sequence

import pytest
from examples import N_STEPS, noisy_steps, step_ratios
from scipy import stats

from bench.statistics.launches import LaunchVariation
from bench.statistics.ratio import (
    QUIET,
    Ratio,
    Typical,
    shown_by,
    typical_of_launches,
    typical_ratios,
    typical_step,
)
from bench.statistics.verdict import speed

STEPS = N_STEPS
KNOWN = LaunchVariation(sd=0.01, degrees=1000, source="many launches")


def ratio(
    base: Sequence[float], head: Sequence[float], noise: float | None = None, variation: LaunchVariation | None = None
) -> Ratio:
    return step_ratios([([base], [head])], noise, variation)[0]


def verdicts(n: int, slower: float, **noise: float) -> list[str]:
    source = random.Random(7)
    pairs = [([noisy_steps(source, **noise)], [noisy_steps(source, slower=slower, **noise)]) for _ in range(n)]
    return [speed(step_ratios([pair], variation=KNOWN)[0]) for pair in pairs]


def test_the_typical_step_is_the_mean_of_the_faster_half_of_what_the_slowest_rank_took() -> None:
    found = typical_step([[1.0, 9.0, 3.0, 4.0, 5.0], [2.0, 1.0, 1.0, 8.0, 7.0]])
    assert found.time_s == pytest.approx((2 + 3 + 7) / 3)  # of 2, 9, 3, 8, 7
    assert found.mean_s == pytest.approx(29 / 5)
    assert found.degrees == 4


def test_the_error_is_the_jackknifes() -> None:
    """Without 1: ln 2.5 (of 2, 3 of four); without 2, or without 1: see the list."""
    found = typical_step([[1.0, 2.0, 3.0, 4.0]])
    left_out = [math.log(2.5), math.log(2.0), math.log(1.5), math.log(1.5)]  # halves: (2, 3), (1, 3), (1, 2), (1, 2)
    middle = statistics.fmean(left_out)
    assert found.error == pytest.approx(math.sqrt(3 / 4 * sum((value - middle) ** 2 for value in left_out)))


def test_the_error_agrees_with_what_many_runs_show() -> None:
    """The jackknife over stretches against the variation of the estimate itself over 300 runs of independent steps."""
    source = random.Random(3)
    runs = [typical_step([[math.exp(source.gauss(0, 0.05)) for _ in range(200)]]) for _ in range(300)]
    shown = statistics.stdev(math.log(run.time_s) for run in runs if run)
    said = math.sqrt(statistics.fmean(run.error**2 for run in runs if run))
    assert said == pytest.approx(shown, rel=0.15)


def test_a_run_is_disturbed_by_what_its_typical_step_takes_beyond_the_fast_one() -> None:
    found = typical_step([[1.0] * 10 + [2.0] * 30])
    assert found.disturbed == pytest.approx(math.log(1.5))


def test_a_disturbed_run_may_have_been_made_slower_and_never_faster() -> None:
    """Its own interval's end lies further off on the side of the truth: head's below, base's above."""
    calm, disturbed = [0.1] * STEPS, [0.09, 0.1, 0.11, 0.12, 0.13] * 10
    for base, head, wider in ((calm, disturbed, 0), (disturbed, calm, 1)):
        found = ratio(base, head, variation=KNOWN)
        reach = [abs(math.log(end / found.estimate)) for end in found.interval]
        assert reach[wider] > 2 * reach[1 - wider]


def test_the_intervals_are_student_ts() -> None:
    """Steps without variation have no error: the noise alone is left, with infinitely many degrees."""
    found = ratio([0.1] * STEPS, [0.12] * STEPS, noise=0.02)
    half = stats.norm.ppf(0.975) * math.sqrt(2) * 0.02
    assert found.estimate == pytest.approx(1.2)
    assert found.of_means == pytest.approx(1.2)
    assert found.interval == pytest.approx((1.2 * math.exp(-half), 1.2 * math.exp(half)))


def test_without_noise_it_is_welchs_test() -> None:
    """Two means as far apart as the interval reaches differ with a probability of error of 5 %, says scipy."""
    source = random.Random(5)
    base, head = noisy_steps(source), noisy_steps(source, jitter=0.03)
    one, other = typical_step([base]), typical_step([head])
    found = ratio(base, head, noise=0.0)
    half, n = math.log(found.interval[1] / found.estimate), 10
    deviations = [math.sqrt(n) * run.error for run in (one, other)]
    welch = stats.ttest_ind_from_stats(half, deviations[0], n, 0, deviations[1], n, equal_var=False)
    assert welch.pvalue == pytest.approx(0.05)


def test_an_alarm_allows_for_the_number_of_attempts() -> None:
    pair = ([[0.1] * STEPS], [[0.12] * STEPS])
    for n in (1, 4):
        found = step_ratios([pair] * n, 0.02)[0]
        half = stats.norm.ppf(1 - 0.01 / n / 2) * math.sqrt(2) * 0.02
        assert math.log(found.alarm[1] / found.estimate) == pytest.approx(half)


def test_the_spread_of_five_attempts_widens_their_intervals_and_a_common_change_does_not() -> None:
    def widths(logs: Sequence[float]) -> list[float]:
        found = step_ratios([([[0.1] * STEPS], [[0.1 * math.exp(log)] * STEPS]) for log in logs], 0.0)
        return [math.log(each.interval[1] / each.estimate) for each in found if each]

    assert widths([0.3] * 6) == pytest.approx([0.0] * 6)
    assert widths([0.0, 0.0, 0.0, 0.0, 0.3]) == pytest.approx([0.0] * 5)
    spread = 1.4826 * 0.02
    assert widths([-0.04, -0.02, 0.0, 0.02, 0.04]) == pytest.approx([stats.t.ppf(0.975, 4) * spread] * 5)
    assert widths([-0.04, 0.04]) == pytest.approx([0.0] * 2)


@pytest.mark.parametrize("launches", [(1, 1), (2, 1), (1, 5)])
def test_few_launches_differ_by_what_is_assumed_or_known_of_launches(launches: tuple[int, int]) -> None:
    """As in a report of one run, and by what other times add to what is known. Five launches show their own variation,
    here none."""
    sides = [typical_of_launches([[[0.1] * STEPS]] * n) for n in launches]
    few = sum(1 / n for n in launches if n < 3)
    for variation, sd, degrees in ((None, 0.05, 10), (KNOWN, math.hypot(0.01, QUIET * math.sqrt(2 / few)), 1e6)):
        (found,) = typical_ratios([(sides[0], sides[1])], variation=variation)
        half = stats.t.ppf(0.975, degrees) * sd * math.sqrt(few)
        assert math.log(found.interval[1]) == pytest.approx(half, rel=1e-3)
        assert found.basis == ("variation" if variation else "assumed")


@pytest.mark.parametrize("slower", [1.025, 1.08])
def test_more_launches_never_make_a_verdict_less_sure(slower: float) -> None:
    """Of a run that shows how much its launches vary, 0.2 %, against one at another time."""

    def launches(number: int, step_s: float) -> list[list[list[float]]]:
        return [[[step_s * factor] * STEPS] for factor in (1.0, 1.002, 0.998, 1.003, 0.997)[:number]]

    known = LaunchVariation(sd=0.002, degrees=4, source="")
    widths = []
    for number in (1, 2, 3, 5):
        sides = typical_of_launches(launches(5, 0.1)), typical_of_launches(launches(number, 0.1 * slower))
        (found,) = typical_ratios([sides], variation=known)
        widths.append(math.log(found.alarm[1] / found.alarm[0]))
    assert min(widths[:-1]) > 0.95 * widths[-1]


def test_a_verdict_names_the_scatter_at_which_it_falls() -> None:
    found = ratio([0.1] * STEPS, [0.14] * STEPS)
    assert speed(found) == "SLOWER"
    for more, contains in ((1.01, True), (0.99, False)):
        there = LaunchVariation(sd=found.tips_at * more, degrees=10, source="")
        low, high = ratio([0.1] * STEPS, [0.14] * STEPS, variation=there).alarm
        assert (low < 1 < high) is contains
    assert speed(ratio([0.1] * STEPS, [0.12] * STEPS)) == "UNCLEAR"
    assert speed(ratio([0.1] * STEPS, [0.12] * STEPS, variation=KNOWN)) == "SLOWER"


def test_ten_attempts_show_how_much_launches_differ() -> None:
    source = random.Random(1)

    def launch() -> Typical | None:
        return typical_step([[0.1 * math.exp(source.gauss(0, 0.03))] * STEPS])

    typical = [(launch(), launch()) for _ in range(400)]
    assert shown_by(typical[:9]) is None
    many = shown_by(typical)
    assert many.sd == pytest.approx(0.03, rel=0.1)
    ten = shown_by(typical[:10])
    assert ten.degrees == 3  # 37 % of nine: a median absolute deviation knows less than a standard deviation
    alike = shown_by([typical[0]] * 10)
    assert alike.sd == 0.01  # never less than on a quiet machine


@pytest.mark.parametrize("few", [[], [[]], [[0.1, 0.1]]])
def test_too_few_steps_give_no_ratio(few: list[list[float]]) -> None:
    assert step_ratios([(few, [[0.1] * 3]), ([[0.1] * 3], [[0.1] * 3])])[0] is None
    assert step_ratios([(few, [[0.1] * 3]), ([[0.1] * 3], [[0.1] * 3])])[1] is not None
    assert speed(None) == "UNCLEAR"


@pytest.mark.parametrize(
    ("interval", "alarm", "verdict"),
    [
        ((0.96, 1.04), (0.94, 1.06), "SAME"),
        ((1.01, 1.04), (1.005, 1.045), "SAME"),
        ((1.01, 1.06), (0.99, 1.08), "UNCLEAR"),
        ((1.04, 1.09), (1.02, 1.11), "UNCLEAR"),
        ((1.06, 1.09), (1.04, 1.11), "UNCLEAR"),
        ((1.07, 1.09), (1.06, 1.11), "SLOWER"),
        ((0.90, 0.94), (0.89, 0.95), "FASTER"),
        ((0.90, 0.94), (0.89, 0.96), "UNCLEAR"),
        ((0.90, 1.10), (0.85, 1.15), "UNCLEAR"),
    ],
)
def test_verdicts(interval: tuple[float, float], alarm: tuple[float, float], verdict: str) -> None:
    typical_s = (0.1, 0.1)
    assert speed(Ratio(estimate=1, interval=interval, alarm=alarm, of_means=1, typical_s=typical_s)) == verdict


@pytest.mark.parametrize("noise", [{}, {"jitter": 0.03}, {"drift": 0.05}], ids=str)
def test_nothing_changed_raises_no_alarm(noise: dict[str, float]) -> None:
    assert not {"SLOWER", "FASTER"} & set(verdicts(200, 1.0, **noise))


def test_on_a_quiet_machine_nothing_changed_is_said() -> None:
    assert verdicts(100, 1.0, jitter=0.003).count("SAME") > 70


@pytest.mark.parametrize("noise", [{}, {"jitter": 0.03}, {"drift": 0.05}], ids=str)
def test_30_percent_is_always_found(noise: dict[str, float]) -> None:
    assert set(verdicts(100, 1.3, **noise)) == {"SLOWER"}
    assert set(verdicts(100, 1 / 1.3, **noise)) == {"FASTER"}


@pytest.mark.parametrize("noise", [{}, {"jitter": 0.03}, {"drift": 0.05}], ids=str)
def test_10_percent_is_never_called_the_same(noise: dict[str, float]) -> None:
    assert not {"SAME", "FASTER"} & set(verdicts(200, 1.1, **noise))


def test_a_change_of_all_attempts_alike_is_found() -> None:
    source = random.Random(2)
    found = step_ratios(
        [([noisy_steps(source)], [noisy_steps(source, slower=1.3)]) for _ in range(12)], variation=KNOWN
    )
    assert {speed(each) for each in found} == {"SLOWER"}


def test_one_attempt_that_changed_among_many_is_found_and_the_others_are_not_blamed() -> None:
    source = random.Random(4)
    found = step_ratios(
        [([noisy_steps(source)], [noisy_steps(source, slower=1.3 if index == 5 else 1.0)]) for index in range(12)],
        variation=KNOWN,
    )
    assert [index for index, each in enumerate(found) if speed(each) == "SLOWER"] == [5]


def test_a_burst_of_other_work_is_not_mistaken_for_a_change() -> None:
    source = random.Random(6)
    base, head = noisy_steps(source), noisy_steps(source)
    head[10:25] = [2 * step_s for step_s in head[10:25]]
    assert speed(ratio(base, head)) not in ("SLOWER", "FASTER")
    assert ratio(base, head).of_means > 1.2  # and the table shows that
