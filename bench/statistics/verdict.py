"""The words for a comparison, and the rule behind each word.

*Two runs of one attempt.* A change of the step time within the margin counts as none. SAME: the attempt's 95 % interval
lies completely inside the margin, and so does the ratio of mean steps. This is a claim of its own, as in a test of
equivalence, and not the absence of another verdict. SLOWER, FASTER: the interval lies completely outside the margin
(Kruschke, Rejecting or accepting parameter values in Bayesian estimation, AMPPS 1, 2018, has the same rule), with 99 %
confidence for all attempts together (Bonferroni), so that a large matrix does not raise an alarm by its size, and the
mean does not say the opposite. SLOWER TAIL, FASTER TAIL: the typical step is neither, but more or fewer steps are slow,
and the mean changes by more than the margin: see `tail`. UNCLEAR: none of these.

*Two cells of one run.* Their throughputs are compared over launches: see `launches`. Faster: the interval of the ratio
lies on one side of 1, with 99 % confidence for all comparisons of the table together. Even: not faster, and the 95 %
interval lies completely inside the margin, a claim of its own as above. Undecided: neither. With one launch a side on a
machine whose scatter between launches is unknown, every ratio is undecided.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bench.statistics.intervals import Interval
from bench.statistics.launches import UNDECIDING, Basis, Launch, Scatter, reach
from bench.statistics.ratio import ALARM_CONFIDENCE, Ratio
from bench.statistics.tail import Tail

Speed = Literal["SAME", "FASTER", "SLOWER", "FASTER TAIL", "SLOWER TAIL", "UNCLEAR"]
"""Of a step of the head run against the same step of the base run."""
Word = Literal["faster", "even", "undecided"]
"""Of the throughputs of two cells."""
EVEN: Word = "even"
FASTER: Word = "faster"
UNDECIDED: Word = "undecided"
MORE_LAUNCHES = "measure.launches=5"
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
    interval: Interval | None = None
    """Where the ratio lies with 95 % confidence; None where one side's scatter is unknown."""
    alarm: Interval | None = None
    """Where it lies with a confidence that accounts for the number of comparisons; never narrower."""
    basis: Basis | None = None
    """Where the difference between launches comes from; None without an interval."""

    @property
    def word(self) -> Word:
        if self.interval is None or self.alarm is None or self.basis in UNDECIDING:
            return UNDECIDED
        if not self.alarm[0] <= 1 <= self.alarm[1]:
            return FASTER
        return EVEN if self.interval[0] >= 1 / (1 + MARGIN) and self.interval[1] <= 1 + MARGIN else UNDECIDED

    @property
    def even(self) -> bool:
        return self.word == EVEN

    @property
    def has_winner(self) -> bool:
        """Whether one side may be called `FASTER`."""
        return self.word == FASTER

    @property
    def may_be_even(self) -> bool:
        """Whether the interval contains 1: the difference may be noise. A ratio without an interval is not known to
        be noise."""
        return self.interval is not None and self.interval[0] <= 1 <= self.interval[1]

    @property
    def inverse(self) -> "RateRatio":
        return RateRatio(1 / self.estimate, _inverse(self.interval), _inverse(self.alarm), self.basis)


def rate_ratio(
    rate: float,
    launches: Sequence[Launch],
    other: float,
    other_launches: Sequence[Launch],
    scatter: Scatter | None = None,
    comparisons: int = 1,
) -> RateRatio:
    """``rate`` divided by ``other``.

    Args:
        launches: of each side; empty for imported figures.
        scatter: between launches of this machine, if known.
        comparisons: number of ratios that are judged together.
    """
    estimate = rate / other
    # A rate is a constant divided by the mean step, so the reach of the inverse ratio of steps is the same.
    within = reach(other_launches, launches, scatter) if launches and other_launches else None
    if within is None:
        return RateRatio(estimate)
    alarm = within.interval(estimate, 1 - (1 - ALARM_CONFIDENCE) / max(comparisons, 1))
    return RateRatio(estimate, within.interval(estimate), alarm, within.basis)


def _inverse(interval: Interval | None) -> Interval | None:
    return None if interval is None else (1 / interval[1], 1 / interval[0])
