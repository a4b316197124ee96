"""By how much a step became longer from one run to the next, and how sure that is. Pure arithmetic on raw samples.

*The typical step.* Ranks wait for each other, so a step takes as long as its slowest rank does: the maximum over ranks.
What else runs on the machine makes steps longer and never shorter (Chen and Revels, Robust benchmarking in noisy
environments, arXiv:1608.04295, who therefore take the fastest sample). A run's typical step is the mean of the faster
half of its steps: bursts of somebody else's work leave it where it is, and it scatters less than the median. A change
that touches fewer than half of the steps is not in it, so the ratio of plain means stands beside it in the table.

*Within a run.* Steps that follow each other are alike, and the faster half is no sample of independent values. Its
standard error is that of a delete-a-block jackknife: the run is cut into k stretches (`intervals.blocks`), the
logarithm of the typical step computed k times without one of them, and

    se^2 = (k - 1) / k * sum (value_i - mean of values)^2

which allows for dependence within a stretch (Künsch, The jackknife and the bootstrap for general stationary
observations, Annals of Statistics 17, 1989). Logarithms, because what disturbs a step does so by a share of it, and
because the interval of a ratio is then the same whichever run is called base.

*Between runs.* Two runs are made at different times in different processes. Where memory lies, which cores a process
gets and what else the machine does is drawn anew, and no number of steps shows it (Kalibera and Jones, Rigorous
benchmarking in reasonable time, ISMM 2013, section 5; Maricq et al., Taming performance variability, OSDI 2018). Two
terms stand for that. `QUIET` is the standard deviation by which processes may differ on a machine that does nothing
else. And a run is disturbed by

    disturbed = ln(typical step / fast step)

where the fast step is the 5th percentile, near what a step takes undisturbed: what the typical step takes more comes
and goes with its surroundings, so it may differ from run to run by as much as it is. Since disturbing only lengthens,
base's own can make head look faster and never slower: each run's stands on one side of the interval.

    below^2 = se_base^2 + se_head^2 + 2 QUIET^2 + disturbed_head^2
    above^2 = se_base^2 + se_head^2 + 2 QUIET^2 + disturbed_base^2

A workload whose steps vary by themselves gets wider intervals than it deserves. Who knows better gives the noise: its
square then stands in place of QUIET's, and for the disturbance too.

With `ENOUGH_PAIRS` attempts in both runs the runs tell something themselves: the spread of the log ratios about the
median one, a median absolute deviation, is used where it is more. A few attempts that really changed do not widen
everybody's interval by it; and the median one is never subtracted, so a change common to all attempts is still found.

An interval reaches Student's t times these to each side, with degrees of freedom after Welch and Satterthwaite.

Tried by tests/perf/compare_trials.py on two cores under a load of 2.5 to 5 from other work: of 165 comparisons of
unchanged attempts, from all pairs of 11 runs, none raised an alarm; a planted sleep of 30 % was SLOWER in 30 of 30
attempts, and one of 10 % SAME in none.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bench.statistics.intervals import CONFIDENCE, Interval, blocks, student_t

Steps = Sequence[Sequence[float]]
"""Step times in seconds of every rank."""

ALARM_CONFIDENCE = 0.99
"""That no attempt of two runs is called SLOWER or FASTER for no reason."""
QUIET = 0.01
"""Standard deviation, as a share, by which runs of the same code differ on a quiet machine."""
FAST = 0.05
"""Share of the steps that are faster than the fast step."""
ENOUGH_PAIRS = 5
"""From which on the attempts' own spread is an estimate."""
MAD_TO_SD = 1.4826
"""From a median absolute deviation to the standard deviation of a normal distribution."""


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Head to base, of the typical step."""

    estimate: float
    interval: Interval
    """Where it lies with 95 % confidence."""
    alarm: Interval
    """Where it lies with a confidence that allows for all attempts; never narrower."""
    of_means: float
    """Head to base, of the plain mean."""
    typical_s: tuple[float, float]
    """The typical step of base and of head."""


class Typical(NamedTuple):
    """A run's step."""

    time_s: float
    error: float
    """Standard error of its logarithm: a share."""
    degrees: int
    disturbed: float
    """By how much the typical step takes longer than the fast one: a logarithm, so a share."""
    mean_s: float


def step_ratios(pairs: Sequence[tuple[Steps, Steps]], noise: float | None = None) -> list[Ratio | None]:
    """The ratio of each pair of base and head; None where one has fewer than three steps.

    Args:
        noise: of every run, instead of what is made of its own steps.
    """
    typical = [(typical_step(base), typical_step(head)) for base, head in pairs]
    both = [(base, head) for base, head in typical if base and head]
    spread = _spread([math.log(head.time_s / base.time_s) for base, head in both])
    ratios = iter([_ratio(base, head, noise, spread, len(both)) for base, head in both])
    return [next(ratios) if base and head else None for base, head in typical]


def typical_step(ranks_s: Steps) -> Typical | None:
    """The typical step of a run and how sure it is; None for fewer than three steps."""
    steps_s = [max(times_s) for times_s in zip(*ranks_s, strict=True)]
    if len(steps_s) < 3:
        return None
    stretches = blocks(steps_s)
    left_out = [
        math.log(_faster_half([step_s for other in stretches if other is not stretch for step_s in other]))
        for stretch in stretches
    ]
    k, time_s = len(stretches), _faster_half(steps_s)
    fast_s = sorted(steps_s)[int(FAST * len(steps_s))]
    return Typical(
        time_s=time_s,
        error=math.sqrt((k - 1) / k * sum((value - statistics.fmean(left_out)) ** 2 for value in left_out)),
        degrees=k - 1,
        disturbed=max(0.0, math.log(time_s / fast_s)),
        mean_s=statistics.fmean(steps_s),
    )


def _faster_half(steps_s: Sequence[float]) -> float:
    return statistics.fmean(sorted(steps_s)[: (len(steps_s) + 1) // 2])


def _ratio(base: Typical, head: Typical, noise: float | None, spread: float, n_pairs: int) -> Ratio:
    log = math.log(head.time_s / base.time_s)
    doubt = base.error**4 / base.degrees + head.error**4 / head.degrees

    def reach(disturbed: float, confidence: float) -> float:
        between = 2 * noise**2 if noise is not None else 2 * QUIET**2 + disturbed**2
        variance = base.error**2 + head.error**2 + between
        # Only the errors are estimated; what is between runs is taken as known and adds no doubt of its own.
        own = student_t(variance**2 / doubt if doubt else math.inf, confidence) * math.sqrt(variance)
        return max(own, student_t(n_pairs - 1, confidence) * spread) if spread else own

    def ends(confidence: float) -> tuple[float, float]:
        return math.exp(log - reach(head.disturbed, confidence)), math.exp(log + reach(base.disturbed, confidence))

    return Ratio(
        estimate=math.exp(log),
        interval=ends(CONFIDENCE),
        alarm=ends(1 - (1 - ALARM_CONFIDENCE) / n_pairs),
        of_means=head.mean_s / base.mean_s,
        typical_s=(base.time_s, head.time_s),
    )


def _spread(logs: Sequence[float]) -> float:
    """Of log ratios about the median one; 0 while there are too few."""
    if len(logs) < ENOUGH_PAIRS:
        return 0.0
    middle = statistics.median(logs)
    return MAD_TO_SD * statistics.median(abs(log - middle) for log in logs)
