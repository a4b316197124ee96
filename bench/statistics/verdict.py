"""The words for a comparison, and the rule behind each: `bench guide comparisons` says what they mean.

SAME and even are claims of their own, as in a test of equivalence, and not the absence of another verdict. An interval
that lies completely outside the margin is SLOWER or FASTER (Kruschke, Rejecting or accepting parameter values in
Bayesian estimation, AMPPS 1, 2018, has the same rule), with 99 % confidence for all attempts or comparisons together
(Bonferroni), so that a large matrix does not raise an alarm by its size. The mean step may not say the opposite.
"""

from dataclasses import dataclass
from math import isinf
from typing import Literal

from bench.statistics.intervals import Interval
from bench.statistics.launches import MANY_LAUNCHES, Basis, HalfWidth
from bench.statistics.ratio import Ratio, confidence_of
from bench.statistics.tail import Tail

Speed = Literal["SAME", "FASTER", "SLOWER", "FASTER TAIL", "SLOWER TAIL", "UNCLEAR"]
"""Of a step of the head run against the same step of the base run."""
Word = Literal["faster", "even", "too close to call", "undecided"]
"""Of the throughputs of two cells."""
EVEN: Word = "even"
FASTER: Word = "faster"
TOO_CLOSE: Word = "too close to call"
UNDECIDED: Word = "undecided"
MORE_LAUNCHES = f"measure.launches={MANY_LAUNCHES}"
"""What a user adds to `bench run` to get a decision."""

MARGIN = 0.05
"""Share by which a step may change and count as the same."""


def speed(ratio: Ratio | None, margin: float = MARGIN, tail: Tail | None = None) -> Speed:
    """The verdict on one attempt of two runs; UNCLEAR where there is no ratio.

    Args:
        tail: None where it is unknown, or where something else than the code explains it.
    """
    if ratio is None:
        return "UNCLEAR"
    longest, shortest = 1 + margin, 1 / (1 + margin)
    if ratio.alarm[0] > longest and ratio.of_means >= shortest:
        return "SLOWER"
    if ratio.alarm[1] < shortest and ratio.of_means <= longest:
        return "FASTER"
    if tail is not None and (tail.longer(margin) or tail.shorter(margin)):
        return "SLOWER TAIL" if tail.longer(margin) else "FASTER TAIL"
    inside = shortest <= ratio.interval[0] and ratio.interval[1] <= longest
    return "SAME" if inside and shortest <= ratio.of_means <= longest else "UNCLEAR"


@dataclass(frozen=True)
class RateRatio:
    """One throughput divided by another."""

    estimate: float
    interval: Interval
    """Where the ratio lies with 95 % confidence."""
    alarm: Interval
    """Where it lies with a confidence that accounts for the number of comparisons; never narrower."""
    basis: Basis
    """Where the difference between launches comes from."""
    tips_at: float | None = None
    """Standard deviation between launches, a share, from which `FASTER` would not hold; None where the launches of
    both sides show it."""
    off: float = 0.0
    """By which share it may be off because of what is doubted; infinite where that is unknown."""

    @property
    def word(self) -> Word:
        if self.basis == "mixed sources":
            return UNDECIDED
        off = 1 + self.off
        if self.alarm[0] > off or self.alarm[1] < 1 / off:
            return FASTER
        if self.interval[0] / off >= 1 / (1 + MARGIN) and self.interval[1] * off <= 1 + MARGIN:
            return EVEN
        # Without the doubt, one side would be faster; or nothing is known.
        doubted = self.alarm[0] > 1 or self.alarm[1] < 1 or isinf(off)
        return UNDECIDED if doubted else TOO_CLOSE

    @property
    def decides(self) -> Interval:
        """On which the word rests: an interval that contains 1 never says faster."""
        return self.interval if self.word == EVEN else self.alarm

    @property
    def decided(self) -> bool:
        return self.word in (FASTER, EVEN)

    @property
    def even(self) -> bool:
        return self.word == EVEN

    @property
    def has_winner(self) -> bool:
        """Whether one side may be called `FASTER`."""
        return self.word == FASTER

    @property
    def may_be_even(self) -> bool:
        """Whether the interval contains 1: the difference may be noise."""
        return self.interval[0] <= 1 <= self.interval[1]

    @property
    def inverse(self) -> "RateRatio":
        return RateRatio(
            1 / self.estimate, _inverse(self.interval), _inverse(self.alarm), self.basis, self.tips_at, self.off
        )


def rate_ratio(estimate: float, within: HalfWidth, comparisons: int = 1, off: float = 0.0) -> RateRatio:
    """A ratio of throughputs or of mean steps: these are inverse, so both have the same half-width.

    Args:
        comparisons: number of ratios that are judged together.
        off: by which share the ratio may be off because of what is doubted.
    """
    confidence = confidence_of(comparisons)
    return RateRatio(
        estimate,
        within.interval(estimate),
        within.interval(estimate, confidence),
        within.basis,
        within.tips_at(estimate, confidence, off),
        off,
    )


def _inverse(interval: Interval) -> Interval:
    return 1 / interval[1], 1 / interval[0]
