"""The words for a comparison: speed of two runs, and ratios of two cells."""

import math

import pytest

from bench.statistics.verdict import RateRatio, rate_ratio


def test_the_interval_of_a_ratio_takes_both_sides_as_independent() -> None:
    ratio = rate_ratio(20.0, (19.0, 21.0), 10.0, (9.0, 11.0))
    half = math.hypot(math.log(21 / 19) / 2, math.log(11 / 9) / 2)
    assert ratio.estimate == 2
    assert ratio.interval == pytest.approx((2 * math.exp(-half), 2 * math.exp(half)))
    assert ratio.inverse.estimate == 0.5
    assert ratio.inverse.interval == pytest.approx((math.exp(-half) / 2, math.exp(half) / 2))


def test_without_one_sides_scatter_there_is_no_interval() -> None:
    assert rate_ratio(20.0, None, 10.0, (9.0, 11.0)).interval is None
    assert RateRatio(2.0, None).inverse.interval is None


@pytest.mark.parametrize(
    ("estimate", "interval", "even", "has_winner"),
    [
        (1.2, (1.1, 1.3), False, True),
        (1.2, (0.9, 1.5), True, False),
        (1.2, (1.0, 1.4), True, False),
        (1.2, None, False, True),
        (1.004, None, False, False),
        (1.004, (1.002, 1.006), False, True),
    ],
)
def test_even_is_a_claim_of_its_own(
    estimate: float, interval: tuple[float, float] | None, even: bool, has_winner: bool
) -> None:
    ratio = RateRatio(estimate, interval)
    assert (ratio.even, ratio.has_winner) == (even, has_winner)
