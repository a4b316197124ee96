"""How much longer a step takes in one run than in another, and how sure that is. Pure arithmetic on raw samples.

*The typical step.* Ranks wait for each other, so a step takes as long as its slowest rank: the maximum over ranks.
Other work on the machine makes steps longer and never shorter (Chen and Revels, Robust benchmarking in noisy
environments, arXiv:1608.04295, who therefore take the fastest sample). The typical step of a run is the mean of the
faster half of its steps. Bursts of other work do not change it, and it scatters less than the median. It does not see
a change that affects fewer than half of the steps, so the table shows the ratio of plain means, too.

*Within a run.* Consecutive steps are correlated, and the faster half is no sample of independent values. Its standard
error is that of a delete-a-block jackknife: the run is cut into k stretches (`intervals.blocks`), the logarithm of the
typical step is computed k times without one of them, and

    se^2 = (k - 1) / k * sum (value_i - mean of values)^2

which allows for dependence within a stretch (Künsch, The jackknife and the bootstrap for general stationary
observations, Annals of Statistics 17, 1989). It uses logarithms because a disturbance lengthens a step by a share of
it, and because the interval of a ratio is then the same whichever run is the base.

*Between runs.* Two runs are made at different times in different processes. Memory addresses, the cores of a process
and the other load of the machine differ from run to run, and no number of steps shows this (Kalibera and Jones,
Rigorous benchmarking in reasonable time, ISMM 2013, section 5; Maricq et al., Taming performance variability, OSDI
2018). Two terms represent this. `QUIET` is the standard deviation between processes on a machine without other load.
The second term is the disturbance of a run,

    disturbed = ln(typical step / fast step)

where the fast step is the 5th percentile, close to an undisturbed step. The additional time of the typical step depends
on the other load, so it may differ between runs by its full size. Disturbances only lengthen steps, so those of base
can make head look faster and never slower. Each run's disturbance therefore widens one side of the interval:

    below^2 = se_base^2 + se_head^2 + 2 QUIET^2 + disturbed_head^2
    above^2 = se_base^2 + se_head^2 + 2 QUIET^2 + disturbed_base^2

A workload whose steps vary by themselves gets wider intervals than necessary. A user who knows the noise can give it:
its square then replaces both QUIET's and the disturbance's.

With `ENOUGH_LAUNCHES` launches of an attempt, their scatter is the error of its typical step, and the disturbance drops
out. QUIET stays: two runs are made at different times, which the launches of neither show.

With `ENOUGH_PAIRS` attempts in both runs, the runs themselves show how much they differ: the spread of the log ratios
about their median, a median absolute deviation, is used where it is larger. A few attempts that really changed do not
widen the intervals of all others. The median itself is never subtracted, so a change that all attempts have in common
is still detected.

An interval reaches Student's t times these to each side, with degrees of freedom after Welch and Satterthwaite.
`verdict` turns intervals into words.

Tried with a workload that sleeps for most of a step, on two cores under a load of 2.5 to 5 from other work: of 165
comparisons of unchanged attempts, from all pairs of 11 runs, none raised an alarm. An added sleep of 30 % was SLOWER in
30 of 30 attempts, and one of 10 % was SAME in none.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bench.statistics.intervals import CONFIDENCE, Interval, blocks, standard_error, student_t

Steps = Sequence[Sequence[float]]
"""Step times in seconds of every rank."""

ALARM_CONFIDENCE = 0.99
"""Probability that no unchanged attempt of two runs is called SLOWER or FASTER."""
QUIET = 0.01
"""Standard deviation between runs of the same code on a quiet machine, as a share."""
FAST = 0.05
"""Share of the steps that are faster than the fast step."""
ENOUGH_LAUNCHES = 3
"""Fewest launches of a side whose own scatter is used."""
ENOUGH_PAIRS = 5
"""Fewest attempts whose own spread is a usable estimate."""
MAD_TO_SD = 1.4826
"""Converts a median absolute deviation into the standard deviation of a normal distribution."""


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Typical step of head divided by that of base."""

    estimate: float
    interval: Interval
    """Where it lies with 95 % confidence."""
    alarm: Interval
    """Where it lies with a confidence that accounts for the number of attempts; never narrower."""
    of_means: float
    """Mean step of head divided by that of base."""
    typical_s: tuple[float, float]
    """The typical steps of base and head."""


class Typical(NamedTuple):
    """A run's step."""

    time_s: float
    error: float
    """Standard error of its logarithm: a share."""
    degrees: int
    disturbed: float
    """How much longer the typical step is than the fast one: a logarithm, so a share."""
    mean_s: float


def step_ratios(pairs: Sequence[tuple[Steps, Steps]], noise: float | None = None) -> list[Ratio | None]:
    """The ratio of each pair of base and head; None where one has fewer than three steps.

    Args:
        noise: standard deviation of every run, as a share, instead of an estimate from its own steps.
    """
    return typical_ratios([(typical_step(base), typical_step(head)) for base, head in pairs], noise)


def typical_ratios(
    typical: Sequence[tuple[Typical | None, Typical | None]], noise: float | None = None
) -> list[Ratio | None]:
    """The ratio of each pair of typical steps; see `step_ratios`."""
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


def typical_of_launches(launches: Sequence[Steps]) -> Typical | None:
    """The typical step of an attempt that was launched several times; None where no launch has three steps.

    With three launches or more, their own scatter is the error, and includes what disturbs them.
    """
    each = [typical for launch in launches if (typical := typical_step(launch))]
    if len(each) < 2:
        return each[0] if each else None
    n, logs = len(each), [math.log(typical.time_s) for typical in each]
    shown = n >= ENOUGH_LAUNCHES
    return Typical(
        time_s=math.exp(statistics.fmean(logs)),
        error=standard_error(logs) if shown else math.hypot(*(typical.error for typical in each)) / n,
        degrees=n - 1 if shown else sum(typical.degrees for typical in each),
        disturbed=0.0 if shown else statistics.fmean(typical.disturbed for typical in each),
        mean_s=statistics.fmean(typical.mean_s for typical in each),
    )


def _faster_half(steps_s: Sequence[float]) -> float:
    return statistics.fmean(sorted(steps_s)[: (len(steps_s) + 1) // 2])


def _ratio(base: Typical, head: Typical, noise: float | None, spread: float, n_pairs: int) -> Ratio:
    log = math.log(head.time_s / base.time_s)
    doubt = base.error**4 / base.degrees + head.error**4 / head.degrees

    def reach(disturbed: float, confidence: float) -> float:
        between = 2 * noise**2 if noise is not None else 2 * QUIET**2 + disturbed**2
        variance = base.error**2 + head.error**2 + between
        # Only the errors are estimates; the variance between runs counts as known and adds no uncertainty.
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
