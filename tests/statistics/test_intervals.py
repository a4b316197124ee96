"""Intervals against scipy, and how often they hold what they promise."""

import math
import random
import statistics
from collections.abc import Callable

import pytest
from scipy import stats

from bench.statistics.intervals import BLOCKS, block_means, blocks, mean_interval, standard_error, student_t

Series = Callable[[random.Random, int], list[float]]


def independent(source: random.Random, n: int) -> list[float]:
    return [source.gauss(1.0, 0.1) for _ in range(n)]


def autocorrelated(source: random.Random, n: int, rho: float = 0.8) -> list[float]:
    """An AR(1) process of mean 1 and standard deviation 0.1."""
    state, found = source.gauss(0.0, 0.1), []
    for _ in range(n):
        found.append(1.0 + state)
        state = rho * state + math.sqrt(1 - rho**2) * source.gauss(0.0, 0.1)
    return found


def coverage(series: Series, n: int, trials: int = 1000) -> float:
    """How often the interval holds the mean of the process, which is 1."""
    source = random.Random(1)
    found = [mean_interval(series(source, n)) for _ in range(trials)]
    return statistics.fmean(low <= 1 <= high for low, high in filter(None, found))


@pytest.mark.parametrize("n", [3, 5, 19])
def test_a_short_series_is_the_textbooks(n: int) -> None:
    samples = independent(random.Random(n), n)
    expected = stats.t.interval(0.95, n - 1, loc=statistics.fmean(samples), scale=stats.sem(samples))
    assert mean_interval(samples) == pytest.approx(expected)


def test_a_long_series_is_the_textbooks_over_the_means_of_its_blocks() -> None:
    samples = independent(random.Random(0), 200)
    means = [statistics.fmean(samples[start : start + 20]) for start in range(0, 200, 20)]
    assert block_means(samples) == pytest.approx(means)
    assert mean_interval(samples, 0.99) == pytest.approx(
        stats.t.interval(0.99, 9, loc=statistics.fmean(samples), scale=stats.sem(means))
    )


def test_by_hand() -> None:
    """Mean 2, standard error 1 / sqrt(3), t of two degrees 4.3027."""
    assert mean_interval([1.0, 2.0, 3.0]) == pytest.approx((2 - 4.302653 / math.sqrt(3), 2 + 4.302653 / math.sqrt(3)))
    assert standard_error([1.0, 2.0, 3.0]) == pytest.approx(1 / math.sqrt(3))


@pytest.mark.parametrize("n", [0, 1, 2])
def test_too_few_say_nothing(n: int) -> None:
    assert mean_interval([1.0] * n) is None


@pytest.mark.parametrize(("n", "sizes"), [(19, [1] * 19), (20, [2] * 10), (29, [2] * 9 + [11]), (57, [5] * 9 + [12])])
def test_blocks_hold_every_sample_once_and_in_order(n: int, sizes: list[int]) -> None:
    found = blocks(list(map(float, range(n))))
    assert [len(block) for block in found] == sizes
    assert [sample for block in found for sample in block] == list(range(n))


def test_student_t_of_infinitely_many_degrees_is_the_normals() -> None:
    assert student_t(math.inf, 0.95) == pytest.approx(stats.norm.ppf(0.975))
    assert student_t(4.5, 0.95) == pytest.approx(stats.t.ppf(0.975, 4.5))


@pytest.mark.parametrize("n", [5, 50, 200])
def test_the_interval_of_independent_steps_holds_its_promise(n: int) -> None:
    assert coverage(independent, n) == pytest.approx(0.95, abs=0.025)


def test_the_interval_of_steps_that_are_alike_nearly_does_where_single_steps_would_not() -> None:
    """With a correlation of 0.8 from step to step, 400 steps are worth 44: 400 (1 - 0.8) / (1 + 0.8)."""
    assert coverage(autocorrelated, 400) > 0.9

    def naively(source: random.Random, n: int) -> bool:
        samples = autocorrelated(source, n)
        half = student_t(n - 1, 0.95) * standard_error(samples)
        return abs(statistics.fmean(samples) - 1) <= half

    source = random.Random(1)
    assert statistics.fmean(naively(source, 400) for _ in range(400)) < 0.7
    assert BLOCKS == 10
