"""The words for a comparison, and the rule behind each word.

*Two runs of one attempt.* A change of the step time within the margin counts as none. SAME: the attempt's 95 % interval
lies completely inside the margin, and so does the ratio of mean steps. This is a claim of its own, as in a test of
equivalence, and not the absence of another verdict. SLOWER, FASTER: the interval lies completely outside the margin
(Kruschke, Rejecting or accepting parameter values in Bayesian estimation, AMPPS 1, 2018, has the same rule), with 99 %
confidence for all attempts together (Bonferroni), so that a large matrix does not raise an alarm by its size, and the
mean does not say the opposite. SLOWER TAIL, FASTER TAIL: the typical step is neither, but more or fewer steps are slow,
and the mean changes by more than the margin: see `tail`. UNCLEAR: none of these.

*Two cells of one run.* Even: the 95 % interval of the ratio of their throughputs contains 1, or the interval is unknown
and the ratio rounds to 1.00. Otherwise one of them is faster.
"""

import math
from dataclasses import dataclass
from typing import Literal

from bench.statistics.intervals import Interval
from bench.statistics.ratio import Ratio
from bench.statistics.tail import Tail

Speed = Literal["SAME", "FASTER", "SLOWER", "FASTER TAIL", "SLOWER TAIL", "UNCLEAR"]
"""Of a step of the head run against the same step of the base run."""
EVEN = "even"
FASTER = "faster"

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
    interval: Interval | None
    """Where the ratio lies with 95 % confidence; None where one side's scatter is unknown."""

    @property
    def even(self) -> bool:
        """Whether the interval contains 1. A ratio without an interval is not known to be even."""
        return self.interval is not None and self.interval[0] <= 1 <= self.interval[1]

    @property
    def has_winner(self) -> bool:
        """Whether one side may be called `FASTER`. Without an interval, a ratio that rounds to 1.00 has no winner."""
        return not self.even and not (self.interval is None and f"{self.estimate:.2f}" == "1.00")

    @property
    def inverse(self) -> "RateRatio":
        ends = None if self.interval is None else (1 / self.interval[1], 1 / self.interval[0])
        return RateRatio(1 / self.estimate, ends)


def rate_ratio(rate: float, interval: Interval | None, other: float, other_interval: Interval | None) -> RateRatio:
    """``rate`` divided by ``other``. The interval takes both sides as independent, on a logarithmic scale."""
    estimate = rate / other
    if interval is None or other_interval is None:
        return RateRatio(estimate, None)
    half = math.hypot(*(math.log(high / low) / 2 for low, high in (interval, other_interval)))
    return RateRatio(estimate, (estimate * math.exp(-half), estimate * math.exp(half)))
