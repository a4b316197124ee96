"""The words for a comparison: speed of two runs, and ratios of two cells."""

import math
from dataclasses import replace

import pytest

from bench.statistics.intervals import Interval
from bench.statistics.launches import Basis
from bench.statistics.verdict import EVEN, FASTER, TOO_CLOSE, UNDECIDED, RateRatio, Word


@pytest.mark.parametrize(
    ("interval", "alarm", "basis", "word"),
    [
        ((1.1, 1.3), (1.05, 1.35), "launches", "faster"),
        ((1.1, 1.3), (0.99, 1.4), "launches", TOO_CLOSE),
        ((0.7, 0.8), (0.6, 0.9), "launches", "faster"),
        ((0.9, 1.5), (0.8, 1.6), "launches", TOO_CLOSE),
        ((0.96, 1.04), (0.9, 1.1), "launches", "even"),
        ((0.94, 1.04), (0.9, 1.1), "launches", TOO_CLOSE),
        ((0.96, 1.06), (0.9, 1.1), "launches", TOO_CLOSE),
        ((1.01, 1.03), (1.005, 1.035), "launches", "faster"),
        ((0.99, 1.01), (0.98, 1.02), "variation", "even"),
        ((1.1, 1.3), (1.05, 1.35), "variation", "faster"),
        ((0.99, 1.01), (0.98, 1.02), "assumed", "even"),
        ((1.1, 1.3), (1.05, 1.35), "assumed", "faster"),
        ((0.99, 1.01), (0.98, 1.02), "mixed sources", UNDECIDED),
    ],
)
def test_faster_and_even_are_claims_of_their_own(interval: Interval, alarm: Interval, basis: Basis, word: Word) -> None:
    for ratio in (found := RateRatio(1.0, interval, alarm, basis), found.inverse):
        assert ratio.word == word
        assert (ratio.even, ratio.has_winner) == (word == "even", word == "faster")


def test_a_doubted_ratio_decides_what_is_beyond_the_doubt() -> None:
    ratio = RateRatio(1.2, (1.1, 1.3), (1.05, 1.35), "launches")
    for off, word in ((0.04, FASTER), (0.06, UNDECIDED), (math.inf, UNDECIDED)):
        assert replace(ratio, off=off).word == replace(ratio, off=off).inverse.word == word


def test_a_doubt_of_known_size_widens_what_is_even_and_changes_nothing_that_is_too_close_to_call() -> None:
    even = RateRatio(1.0, (0.99, 1.01), (0.98, 1.02), "launches")
    for off, word in ((0.01, EVEN), (0.1, TOO_CLOSE), (math.inf, UNDECIDED)):
        assert replace(even, off=off).word == replace(even, off=off).inverse.word == word


def test_the_inverse_is_the_same_ratio_seen_from_the_other_side() -> None:
    found = RateRatio(2.0, (1.6, 2.5), (1.25, 4.0), "assumed", 0.1)
    assert found.inverse == RateRatio(0.5, (0.4, 0.625), (0.25, 0.8), "assumed", 0.1)


def test_a_ratio_whose_interval_contains_1_may_be_even() -> None:
    assert not RateRatio(1.1, (1.05, 1.15), (1.0, 1.2), "assumed").may_be_even
    assert RateRatio(1.1, (0.9, 1.3), (0.8, 1.4), "assumed").may_be_even
