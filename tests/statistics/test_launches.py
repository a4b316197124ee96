"""Ratios over launches: against scipy, and by simulation with a known variation within and between launches."""

import math
import random
from collections.abc import Callable, Sequence

import pytest
from scipy import stats

from bench.statistics.launches import (
    ASSUMED,
    Launch,
    LaunchVariation,
    half_width,
    launch_of,
    mean_half_width,
    more_than_assumed,
    variation_of,
)
from bench.statistics.verdict import TOO_CLOSE, RateRatio, rate_ratio

STEPS = 40
BETWEEN, WITHIN, LIKE_THE_LAST = 0.01, 0.03, 0.6
"""Standard deviations between launches and of a step within one, as shares, and the correlation of steps (AR(1))."""


def launch(source: random.Random, number: int, *, slower: float = 1.0, level: float = 0.0) -> Launch:
    """One launch of 100 ms a step. ``level``: a share by which its round is slower."""
    base = 0.1 * slower * math.exp(level + source.gauss(0, BETWEEN))
    state, steps = source.gauss(0, WITHIN), []
    for _ in range(STEPS):
        state = LIKE_THE_LAST * state + math.sqrt(1 - LIKE_THE_LAST**2) * source.gauss(0, WITHIN)
        steps.append(base * math.exp(state))
    return launch_of(steps, number)


def rounds(source: random.Random, n: int, slower: float = 1.0, drift: float = 0.0) -> tuple[list[Launch], list[Launch]]:
    """Two cells in ``n`` interleaved rounds; the second is ``slower``, and the machine drifts over the rounds."""
    pairs = [
        (launch(source, i, level=drift * i), launch(source, i, slower=slower, level=drift * i)) for i in range(1, n + 1)
    ]
    return [one for one, _ in pairs], [other for _, other in pairs]


def of_steps(*steps: float) -> list[Launch]:
    return [launch_of([step] * STEPS, number) for number, step in enumerate(steps, 1)]


def ratio(
    one: Sequence[Launch], other: Sequence[Launch], variation: LaunchVariation | None = None, n: int = 1
) -> RateRatio:
    """How many times the throughput of ``one`` is that of ``other``."""
    rates = [len(side) / sum(launch.mean_s for launch in side) for side in (one, other)]
    return rate_ratio(rates[0] / rates[1], half_width(other, one, variation), n)


def test_launches_of_the_same_rounds_are_compared_in_pairs() -> None:
    one, other = [0.10, 0.11, 0.12, 0.13], [0.105, 0.114, 0.128, 0.134]
    found = half_width(of_steps(*one), of_steps(*other), None)
    said = stats.ttest_rel([math.log(s) for s in one], [math.log(s) for s in other]).confidence_interval()
    low, high = found.interval(1.0)
    assert math.log(high / low) == pytest.approx(said.high - said.low)
    assert (found.basis, found.degrees) == ("launches", 3)


def test_a_drift_of_the_machine_drops_out_of_the_pairs() -> None:
    drifting = [0.10, 0.12, 0.14, 0.16]
    found = ratio(of_steps(*drifting), of_steps(*(1.05 * step for step in drifting)))
    assert found.word == "faster"
    assert found.interval == pytest.approx((1.05, 1.05))


def test_launches_of_different_rounds_are_compared_by_welchs_test() -> None:
    one, other = [0.10, 0.11, 0.12, 0.13, 0.14], [0.105, 0.114, 0.128]
    found = half_width(of_steps(*one), of_steps(*other), None)
    logs = [[math.log(step) for step in side] for side in (one, other)]
    said = stats.ttest_ind(*logs, equal_var=False).confidence_interval()
    low, high = found.interval(1.0)
    assert math.log(high / low) == pytest.approx(said.high - said.low)


def test_the_scatter_of_a_machine_is_pooled_over_attempts() -> None:
    assert variation_of([of_steps(0.1, 0.2), of_steps(0.3)], "here") is None
    pair = more_than_assumed([of_steps(0.1, 0.17), of_steps(0.3)], "here")
    assert pair == LaunchVariation(
        sd=pytest.approx(math.log(1.7) / math.sqrt(2)), degrees=ASSUMED.degrees, source="here", over_time=True
    )
    assert more_than_assumed([of_steps(0.1, 0.104)], "here") is None
    found = variation_of([of_steps(0.1, 0.1 * math.e), of_steps(0.3, 0.3 * math.e), of_steps(0.5)], "here")
    assert (found.sd, found.degrees) == (pytest.approx(math.sqrt(0.5)), 2)


def test_one_launch_decides_by_an_assumed_variation_and_says_when_it_would_fall() -> None:
    one, other = of_steps(0.1), of_steps(0.2)
    found = ratio(one, other)
    assert (found.word, found.basis) == ("faster", "assumed")
    half = stats.t.ppf(0.995, 10) * math.sqrt(2) * 0.05
    assert found.alarm == pytest.approx((2 * math.exp(-half), 2 * math.exp(half)))
    assert found.tips_at == pytest.approx(math.log(2) / stats.t.ppf(0.995, 10) / math.sqrt(2))
    assert ratio(one, one).word == TOO_CLOSE
    assert ratio(one, of_steps(0.11)).word == TOO_CLOSE
    assert ratio(one, of_steps(0.11)).tips_at < 0.05  # type: ignore[operator]
    assert ratio(of_steps(0.1, 0.1, 0.1), of_steps(0.2, 0.2, 0.2)).tips_at is None


def test_the_known_scatter_of_the_machine_comes_before_the_assumed_one() -> None:
    one, other = of_steps(0.1), of_steps(0.2)
    known = LaunchVariation(sd=0.01, degrees=8, source="elsewhere")
    assert ratio(one, other, known).word == "faster"
    assert ratio(one, one, known).word == "even"
    half = stats.t.ppf(0.975, 8) * math.sqrt(2) * 0.01
    assert ratio(one, one, known).interval == pytest.approx((math.exp(-half), math.exp(half)))
    assert ratio(one, other, LaunchVariation(sd=0.2, degrees=8, source="elsewhere")).word == TOO_CLOSE


def test_imported_figures_count_as_one_launch_of_unknown_steps() -> None:
    imported = rate_ratio(2.0, half_width([], [], None))
    assert imported == ratio(of_steps(0.1), of_steps(0.2))
    assert rate_ratio(1.1, half_width([], [], None)).word == TOO_CLOSE


def test_steps_that_vary_widen_what_is_assumed() -> None:
    rough, smooth = [launch_of([0.05, 0.15] * 2 + [0.05, 0.16])], of_steps(0.2)
    assert ratio(rough, smooth).interval[1] > ratio(of_steps(rough[0].mean_s), smooth).interval[1]


def test_the_more_comparisons_the_more_it_takes_to_be_called_faster() -> None:
    one, other = of_steps(0.100, 0.101, 0.102), of_steps(0.110, 0.1115, 0.1112)
    assert [ratio(one, other, n=n).word for n in (1, 30)] == ["faster", TOO_CLOSE]
    assert ratio(one, other, n=30).interval == ratio(one, other).interval


# By simulation. Each count is one of 1000 tries, so a rate of 1 % varies by 0.3 %, one of 95 % by 0.7 %.

TRIES = 1000


def words(make: Callable[[random.Random], RateRatio]) -> dict[str, int]:
    source = random.Random(1)
    found = [make(source).word for _ in range(TRIES)]
    return {word: found.count(word) for word in ("faster", "even", TOO_CLOSE)}


def coverage(truth: float, make: Callable[[random.Random], RateRatio]) -> float:
    source = random.Random(2)
    intervals = [make(source).interval for _ in range(TRIES)]
    return sum(low <= truth <= high for low, high in intervals) / TRIES


@pytest.mark.parametrize("n", [3, 5, 10])
def test_equal_cells_are_rarely_called_different_and_the_interval_covers(n: int) -> None:
    assert words(lambda source: ratio(*rounds(source, n)))["faster"] <= 0.02 * TRIES
    assert coverage(1.0, lambda source: ratio(*rounds(source, n))) >= 0.93


def test_neither_a_drift_nor_a_real_difference_spoils_the_coverage() -> None:
    assert coverage(1.05, lambda source: ratio(*rounds(source, 5, slower=1.05, drift=0.02))) >= 0.93
    assert words(lambda source: ratio(*rounds(source, 5, drift=0.02)))["faster"] <= 0.02 * TRIES


def test_launches_of_unequal_number_cover_too() -> None:
    def unequal(source: random.Random) -> RateRatio:
        one, other = rounds(source, 5)
        return ratio(one, other[:3])

    assert coverage(1.0, unequal) >= 0.93
    assert words(unequal)["faster"] <= 0.02 * TRIES


@pytest.mark.parametrize(("sd", "most"), [(0.03, 0.01), (0.08, 0.05)])
def test_a_table_of_eight_equal_pairs_rarely_names_a_winner(sd: float, most: float) -> None:
    """One launch a side on a machine of which nothing is known; it varies less, or more, than is assumed."""
    source, false_names = random.Random(5), 0
    for _ in range(TRIES):
        pairs = [[of_steps(0.1 * math.exp(source.gauss(0, sd))) for _ in "ab"] for _ in range(8)]
        false_names += any(ratio(one, other, n=8).has_winner for one, other in pairs)
    assert false_names <= most * TRIES


def test_a_known_scatter_covers_with_one_launch_a_side() -> None:
    def once(source: random.Random) -> RateRatio:
        known = variation_of([[launch(source, i) for i in range(10)] for _ in range(2)], "calibrated")
        return ratio(*rounds(source, 1), known)

    assert coverage(1.0, once) >= 0.93
    assert words(once)["faster"] <= 0.02 * TRIES


def test_a_mean_step_of_launches_is_covered() -> None:
    source, covered = random.Random(3), 0
    for _ in range(TRIES):
        launches = [launch(source, i) for i in range(5)]
        found = mean_half_width(launches, None)
        low, high = found.interval(sum(one.mean_s for one in launches) / 5)
        covered += low <= 0.1 * math.exp(WITHIN**2 / 2) <= high
    assert covered >= 0.93 * TRIES


def test_few_launches_are_judged_by_what_is_known_of_the_machine_unless_they_vary_more() -> None:
    known = LaunchVariation(sd=0.02, degrees=12, source="this run")
    one, other = of_steps(0.1, 0.1005, 0.0995), of_steps(0.12, 0.1205, 0.1195)
    found = half_width(one, other, known)
    assert (found.basis, found.degrees) == ("variation", 12)
    assert found.error == pytest.approx(0.02 * math.sqrt(2 / 3))
    wild = of_steps(0.08, 0.1, 0.12)
    assert half_width(wild, other, known).error == half_width(wild, other, None).error
    assert half_width(wild, other, known).degrees == 12
    five = of_steps(0.1, 0.1, 0.1, 0.1, 0.101)
    assert half_width(five, five[::-1], known) == half_width(five, five[::-1], None)


def test_of_eight_pairs_launched_three_times_few_are_called_different_and_a_difference_is_found() -> None:
    """Their own variation, of two degrees of freedom, finds a tenth of what that of the machine finds."""

    def of(source: random.Random, slower: float, *, knows: bool = True) -> RateRatio:
        calibrated = [[launch(source, i) for i in range(5)] for _ in range(3)]
        known = variation_of(calibrated, "this run") if knows else None
        return ratio(*rounds(source, 3, slower), known, 8)

    assert words(lambda source: of(source, 1.0))["faster"] <= 0.005 * TRIES
    found, alone = (words(lambda source, k=k: of(source, 1.08, knows=k))["faster"] for k in (True, False))  # type: ignore[misc]
    assert found >= 0.9 * TRIES
    assert alone <= 0.5 * TRIES


def test_a_difference_of_5_percent_is_found_with_eight_launches() -> None:
    """The power at these variations: 17 % with three launches, 74 % with five, 99 % with eight."""
    assert words(lambda source: ratio(*rounds(source, 8, slower=1.05)))["faster"] >= 0.95 * TRIES
    assert words(lambda source: ratio(*rounds(source, 8, slower=1.05)))["even"] <= 0.01 * TRIES


def test_steps_alone_would_raise_false_alarms() -> None:
    """What the intervals over launches are for: an interval from the steps of one launch excludes 1 far too often."""
    source, alarms = random.Random(4), 0
    for _ in range(200):
        (one,), (other,) = rounds(source, 1)
        alarms += abs(math.log(one.mean_s / other.mean_s)) > 2.26 * math.hypot(one.error, other.error)
    assert alarms > 0.2 * 200


def test_stopping_when_the_interval_is_narrow_keeps_the_promises() -> None:
    """Rounds are added until the interval reaches 2 % to each side, from the fifth round on: 6.5 on average."""

    def until(source: random.Random, slower: float) -> RateRatio:
        one, other = rounds(source, 5, slower)
        while True:
            found = ratio(one, other)
            if found.interval[1] / found.estimate <= 1.02 or len(one) == 30:
                return found
            one.append(launch(source, len(one) + 1))
            other.append(launch(source, len(other) + 1, slower=slower))

    assert words(lambda source: until(source, 1.0))["faster"] <= 0.02 * TRIES
    assert words(lambda source: until(source, 1.05))["faster"] >= 0.95 * TRIES
    assert coverage(1.0, lambda source: until(source, 1.0)) >= 0.93
