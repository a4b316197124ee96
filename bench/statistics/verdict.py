"""The words for a comparison, and the rule behind each word.

*Two runs of one attempt.* A change of the step time within the margin counts as none. SAME: the attempt's 95 % interval
lies completely inside the margin. This is a claim of its own, as in a test of equivalence, and not the absence of
another verdict. SLOWER, FASTER: the interval lies completely outside the margin (Kruschke, Rejecting or accepting
parameter values in Bayesian estimation, AMPPS 1, 2018, has the same rule), with 99 % confidence for all attempts
together (Bonferroni), so that a large matrix does not raise an alarm by its size. UNCLEAR: none of these.

*Two cells of one run.* Even: the 95 % interval of the ratio of their throughputs contains 1, or the interval is unknown
and the ratio rounds to 1.00. Otherwise one of them is faster.
"""

import math
from dataclasses import dataclass
from typing import Literal

from bench.statistics.intervals import Interval
from bench.statistics.ratio import Ratio

Speed = Literal["SAME", "FASTER", "SLOWER", "UNCLEAR"]
"""Of a step of the head run against the same step of the base run."""
EVEN = "even"
FASTER = "faster"

MARGIN = 0.05
"""Share by which a step may change and count as the same."""


def speed(ratio: Ratio | None, margin: float = MARGIN) -> Speed:
    """The verdict on one attempt of two runs; UNCLEAR where there is no ratio."""
    if ratio is None:
        return "UNCLEAR"
    if 1 / (1 + margin) <= ratio.interval[0] and ratio.interval[1] <= 1 + margin:
        return "SAME"
    if ratio.alarm[0] > 1 + margin:
        return "SLOWER"
    return "FASTER" if ratio.alarm[1] < 1 / (1 + margin) else "UNCLEAR"


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
