"""Slow steps of two runs: arithmetic by hand, planted tails, and noise that is no change."""

import math
import random
from collections.abc import Callable

import pytest
from examples import step_ratios
from scipy import stats

from bench.statistics.intervals import standard_error
from bench.statistics.tail import SLOW, Tail, tails
from bench.statistics.verdict import MARGIN, speed

N = 50
Run = Callable[[random.Random], list[float]]


def tail(base: list[float], head: list[float], noise: float | None = None) -> Tail:
    return tails([([[base]], [[head]])], noise)[0]


def verdict(base: list[float], head: list[float]) -> str:
    (ratio,) = step_ratios([([base], [head])])
    return speed(ratio, MARGIN, tail(base, head))


def steady(source: random.Random, variation: float = 0.02) -> list[float]:
    level = 0.1 * math.exp(source.gauss(0, 0.01))
    return [level * (1 + source.gauss(0, variation)) for _ in range(N)]


def doubled(source: random.Random, n: int = 16) -> list[float]:
    steps_s = steady(source)
    for index in source.sample(range(N), n):
        steps_s[index] *= 2
    return steps_s


def burst(source: random.Random) -> list[float]:
    first = source.randrange(N - 16)
    return [step_s * (2 if first <= index < first + 16 else 1) for index, step_s in enumerate(steady(source))]


def spikes(source: random.Random) -> list[float]:
    return [
        step_s * (1 + source.paretovariate(1.5) / 2) if source.random() < 0.1 else step_s for step_s in steady(source)
    ]


def log_normal(source: random.Random) -> list[float]:
    return [0.1 * math.exp(source.gauss(0, 0.2)) for _ in range(N)]


def drift(source: random.Random) -> list[float]:
    return [step_s * (1 + 0.6 * index / N) for index, step_s in enumerate(steady(source))]


def test_which_steps_are_slow_and_how_slow() -> None:
    """The typical step is 1; the slowest rank decides, and 1.2 is not slow."""
    ranks = [[1.0, 1.0, 2.0, 1.0, 1.2, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 3.0, 1.0]]
    (found,) = tails([([[[1.0] * 8] * 2], [ranks])])
    assert (found.base.indices, found.base.times) == ((), None)
    assert (found.head.indices, found.head.times, found.head.n_steps) == ((2, 6), (2.0, 3.0), 8)
    assert found.head.share == 0.25
    assert found.of_means == pytest.approx(11.2 / 8 / 1.0)


def test_the_interval_by_hand_where_the_noise_is_given() -> None:
    base, head = [1.0] * 6, [1.0, 1.0, 1.0, 1.0, 2.0, 1.0]
    error = standard_error(head) / (7 / 6)
    variance = error**2 + 2 * 0.1**2

    reach = stats.t.ppf(0.975, variance**2 / (error**4 / 5)) * math.sqrt(variance)
    assert tail(base, head, noise=0.1).interval == pytest.approx((7 / 6 * math.exp(-reach), 7 / 6 * math.exp(reach)))


def test_fewer_than_three_steps_have_no_tail() -> None:
    assert tails([([[[1.0, 1.0]]], [[[1.0, 9.0]]])]) == [None]


def test_the_tail_that_passed_the_gate_as_the_same() -> None:
    """16 of 50 steps doubled: the typical step is the same, and the mean is 1.32 times as long."""
    head = [0.2 if index % 3 == 2 else 0.1 for index in range(N)]
    (ratio,) = step_ratios([([[0.1] * N], [head])])
    assert (ratio.estimate, ratio.of_means) == pytest.approx((1.0, 1.32))
    assert speed(ratio) == "UNCLEAR"  # without its tail, and never SAME
    assert verdict([0.1] * N, head) == "SLOWER TAIL"
    assert verdict(head, [0.1] * N) == "FASTER TAIL"
    assert len(tail([0.1] * N, head).head.indices) == 16


def test_planted_tails_are_found() -> None:
    source = random.Random(5)
    found = [verdict(steady(source), doubled(source)) for _ in range(60)]
    assert found.count("SLOWER TAIL") >= 57
    assert "SAME" not in found
    assert "FASTER" not in found


def test_a_mean_beyond_the_margin_is_never_the_same() -> None:
    source = random.Random(6)
    for _ in range(60):
        base, head = steady(source), doubled(source, source.randrange(1, 20))
        if tail(base, head).of_means > 1 + MARGIN:
            assert verdict(base, head) != "SAME"


@pytest.mark.parametrize("run", [steady, doubled, burst, spikes, log_normal, drift])
def test_the_same_noise_in_both_runs_is_no_change(run: Run) -> None:
    source = random.Random(7)
    found = [verdict(run(source), run(source)) for _ in range(100)]
    assert {"SLOWER", "FASTER", "SLOWER TAIL", "FASTER TAIL"}.isdisjoint(found)


def test_a_burst_in_one_run_alone_is_no_change_and_not_the_same() -> None:
    source = random.Random(8)
    assert {verdict(steady(source), burst(source)) for _ in range(60)} == {"UNCLEAR"}


def busy(source: random.Random, n: int = 60) -> list[float]:
    """On a machine of which other processes take 40 %: three in ten steps take up to 1.7 times as long."""
    return [0.032 * (1 + source.gauss(0, 0.03) + (source.random() < 0.3) * source.uniform(0, 0.7)) for _ in range(n)]


def test_slow_steps_of_another_size_are_found_where_as_many_are_slow() -> None:
    """Every third step takes 150 ms longer: 5.7 times the typical step, where those of base take at most 1.7 times."""
    source = random.Random(9)
    found = []
    for _ in range(60):
        head = [step_s + 0.15 * (index % 3 == 2) for index, step_s in enumerate(busy(source))]
        found.append(verdict(busy(source), head))
    assert found.count("SLOWER TAIL") >= 57
    unchanged = [verdict(busy(source), busy(source)) for _ in range(200)]
    assert len([word for word in unchanged if word not in ("SAME", "UNCLEAR")]) <= 2


def test_a_faster_typical_step_does_not_hide_a_longer_mean() -> None:
    head = [0.40 if index % 3 == 2 else 0.06 for index in range(N)]
    (ratio,) = step_ratios([([[0.1] * N], [head])])
    assert ratio.alarm[1] < 1 / (1 + MARGIN) < ratio.of_means
    assert verdict([0.1] * N, head) == "SLOWER TAIL"


def test_slow_starts_at_the_stated_multiple() -> None:
    for times, n_slow in ((SLOW + 0.01, 3), (SLOW - 0.01, 0)):
        head = [times if index % 10 == 9 else 1.0 for index in range(30)]
        assert len(tail([1.0] * 30, head).head.indices) == n_slow


def test_a_slower_launch_is_no_tail_of_slow_steps() -> None:
    source = random.Random(9)
    even = [[steady(source)] for _ in range(3)]
    apart = [[steady(source)], [[1.4 * step_s for step_s in steady(source)]], [steady(source)]]
    (found,) = tails([(even, apart)])
    assert not found.head.indices
    assert not found.more
    (planted,) = tails([(even, [[doubled(source)] for _ in range(3)])])
    assert len(planted.head.indices) == 3 * 16
    assert planted.longer(MARGIN)
