"""How much longer a step takes in one run than in another, and how sure that is. Pure arithmetic on raw samples.

*The typical step.* Ranks wait for each other, so a step takes as long as its slowest rank: the maximum over ranks.
Other work on the machine makes steps longer and never shorter (Chen and Revels, Robust benchmarking in noisy
environments, arXiv:1608.04295, who therefore take the fastest sample). The typical step of a run is the mean of the
faster half of its steps. Bursts of other work do not change it, and it varies less than the median. It does not see
a change that affects fewer than half of the steps, so the table shows the ratio of plain means, too.

*Within a run.* Consecutive steps are correlated, and the faster half is no sample of independent values. Its standard
error is that of a delete-a-block jackknife: the run is cut into k stretches (`intervals.blocks`), the logarithm of the
typical step is computed k times without one of them, and

    se^2 = (k - 1) / k * sum (value_i - mean of values)^2

which allows for dependence within a stretch (Künsch, The jackknife and the bootstrap for general stationary
observations, Annals of Statistics 17, 1989). It uses logarithms because a disturbance lengthens a step by a share of
it, and because the interval of a ratio is then the same whichever run is the base.

*Between runs.* Two runs are made in different processes, whose memory addresses and cores differ, and no number of
steps shows this: see `launches`. With fewer than `ENOUGH_LAUNCHES` launches of an attempt, the machine's known
`LaunchVariation` stands for it, or else `ASSUMED`, as everywhere in `bench`: sd^2 / launches of each run. A second term
is the disturbance of a run,

    disturbed = ln(typical step / fast step)

where the fast step is the 5th percentile, close to an undisturbed step. The additional time of the typical step depends
on the other load, so it may differ between runs by its full size. Disturbances only lengthen steps, so those of base
can make head look faster and never slower. Each run's disturbance therefore widens one side of the interval:

    below^2 = se_base^2 + se_head^2 + between^2 + disturbed_head^2
    above^2 = se_base^2 + se_head^2 + between^2 + disturbed_base^2

A workload whose steps vary by themselves gets wider intervals than necessary. A user who knows the noise can give it:
its square then replaces the launches' and the disturbance's, however many launches there are.

*The mean step* of two runs has the interval of a report, with `QUIET` where launches show their own variation. Of
imported figures and those of a script, nothing else is known, so it is compared instead of the typical step.

With `ENOUGH_LAUNCHES` launches, their own variation is the error of an attempt's typical step, and the disturbance
drops out. With fewer than `MANY_LAUNCHES`, the machine's is, where it is known better and is not smaller.

Two runs are made at different times, which the launches of neither show: `QUIET` is added to what launches show.

With `ENOUGH_PAIRS` attempts in both runs, the runs themselves show how much they differ: the spread of the log ratios
about their median, a median absolute deviation, is used where it is larger. With `MANY_PAIRS`, it also takes the place
of `ASSUMED`. A few attempts that really changed do not widen the intervals of all others. The median itself is never
subtracted, so a change that all attempts have in common is still detected.

An interval reaches Student's t times these to each side, with degrees of freedom after Welch and Satterthwaite.
`verdict` turns intervals into words.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bench.statistics.intervals import CONFIDENCE, Interval, blocks, standard_error, student_t
from bench.statistics.launches import (
    ASSUMED,
    ENOUGH_LAUNCHES,
    Basis,
    HalfWidth,
    Launch,
    LaunchVariation,
    half_width,
    summed,
    surer,
)

Steps = Sequence[Sequence[float]]
"""Step times in seconds of every rank."""

ALARM_CONFIDENCE = 0.99
"""Probability that no unchanged attempt of two runs is called SLOWER or FASTER."""
QUIET = 0.01
"""Standard deviation between runs of the same code at different times on a quiet machine, as a share."""
FAST = 0.05
"""Share of the steps that are faster than the fast step."""
ENOUGH_PAIRS = 5
"""Fewest attempts whose own spread widens their intervals."""
MANY_PAIRS = 10
"""Fewest attempts whose own spread stands for the variation between launches where that is unknown."""
MAD_TO_SD = 1.4826
"""Converts a median absolute deviation into the standard deviation of a normal distribution."""
MAD_EFFICIENCY = 0.37
"""Share of the degrees of freedom that are left (Rousseeuw and Croux, Alternatives to the median absolute deviation,
JASA 88, 1993)."""


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
    basis: Basis = "launches"
    """Where the difference between launches comes from."""
    tips_at: float | None = None
    """Standard deviation between launches, a share, from which ``alarm`` would reach the margin; None where both sides
    have enough launches."""
    as_wide_as_spread: bool = False
    """Whether the ratios of the attempts differ by so much among themselves that this alone gives the width."""


class Typical(NamedTuple):
    """A run's step."""

    time_s: float
    error: float
    """Standard error of its logarithm: a share."""
    degrees: int
    disturbed: float
    """How much longer the typical step is than the fast one: a logarithm, so a share."""
    mean_s: float
    launches: int = 1


def confidence_of(comparisons: int) -> float:
    """Of one of these comparisons, so that all together have `ALARM_CONFIDENCE` (Bonferroni)."""
    return 1 - (1 - ALARM_CONFIDENCE) / max(comparisons, 1)


def typical_ratios(
    typical: Sequence[tuple[Typical | None, Typical | None]],
    noise: float | None = None,
    variation: LaunchVariation | None = None,
    margin: float = 0.0,
    comparisons: int | None = None,
) -> list[Ratio | None]:
    """The ratio of each pair of base and head; None where one has fewer than three steps.

    Args:
        noise: standard deviation of every run, as a share, instead of an estimate from its own steps.
        variation: between launches on this machine, if known.
        margin: share by which a step may change and count as the same.
        comparisons: number of ratios that are judged together, if others are, too.
    """
    both = [(base, head) for base, head in typical if base and head]
    spread = _spread([math.log(head.time_s / base.time_s) for base, head in both])
    confidence = confidence_of(comparisons or len(both))
    ratios = iter([_ratio(base, head, noise, variation, margin, spread, len(both), confidence) for base, head in both])
    return [next(ratios) if base and head else None for base, head in typical]


def ratio_of_means(means_s: tuple[float, float], within: HalfWidth, margin: float, comparisons: int) -> Ratio:
    """Of a base and a head of whose steps only the means are known: the typical step, too, is then the mean one.

    Args:
        margin: share by which a step may change and count as the same.
        comparisons: number of ratios that are judged together.
    """
    estimate, confidence = means_s[1] / means_s[0], confidence_of(comparisons)
    return Ratio(
        estimate=estimate,
        interval=within.interval(estimate),
        alarm=within.interval(estimate, confidence),
        of_means=estimate,
        typical_s=means_s,
        basis=within.basis,
        tips_at=within.tips_at(estimate, confidence, margin),
    )


def shown_by(typical: Sequence[tuple[Typical | None, Typical | None]]) -> LaunchVariation | None:
    """The variation between launches that many attempts of two runs show themselves; None with fewer."""
    logs = [math.log(head.time_s / base.time_s) for base, head in typical if base and head]
    if len(logs) < MANY_PAIRS:
        return None
    sd = max(_spread(logs) / math.sqrt(2), QUIET)
    degrees = round(MAD_EFFICIENCY * (len(logs) - 1))
    return LaunchVariation(sd=sd, degrees=degrees, source="the attempts of both runs", over_time=True)


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


def typical_of_launches(launches: Sequence[Steps], noise: float | None = None) -> Typical | None:
    """The typical step of an attempt that was launched several times; None where no launch has three steps.

    With three launches or more, their own variation is the error, and includes what disturbs them; unless ``noise``
    says how much they vary.
    """
    each = [typical for launch in launches if (typical := typical_step(launch))]
    if len(each) < 2:
        return each[0] if each else None
    n, logs = len(each), [math.log(typical.time_s) for typical in each]
    shown = n >= ENOUGH_LAUNCHES and noise is None
    return Typical(
        time_s=math.exp(statistics.fmean(logs)),
        error=standard_error(logs) if shown else math.hypot(*(typical.error for typical in each)) / n,
        degrees=n - 1 if shown else sum(typical.degrees for typical in each),
        disturbed=0.0 if shown else statistics.fmean(typical.disturbed for typical in each),
        mean_s=statistics.fmean(typical.mean_s for typical in each),
        launches=n,
    )


def _faster_half(steps_s: Sequence[float]) -> float:
    return statistics.fmean(sorted(steps_s)[: (len(steps_s) + 1) // 2])


def means_half_width(
    base: Sequence[Launch], head: Sequence[Launch], noise: float | None, variation: LaunchVariation | None
) -> HalfWidth:
    """Of the mean step of one run divided by that of another run, with ``noise`` as in `typical_ratios`."""
    if noise is not None:
        errors = [(launch.error, launch.degrees, len(side)) for side in (base, head) for launch in side]
        return _with_noise([((error / n) ** 2, float(degrees)) for error, degrees, n in errors if error], noise)
    return _at_other_times(half_width(head, base, variation, one_run=False), variation)


def _ratio(
    base: Typical,
    head: Typical,
    noise: float | None,
    variation: LaunchVariation | None,
    margin: float,
    spread: float,
    n_pairs: int,
    confidence: float,
) -> Ratio:
    log = math.log(head.time_s / base.time_s)
    below, above = (_half_width(base, head, side.disturbed, noise, variation) for side in (head, base))

    def own(half_width: HalfWidth, confidence: float) -> float:
        return student_t(half_width.degrees, confidence) * half_width.error

    def least(confidence: float) -> float:
        return student_t(n_pairs - 1, confidence) * spread if spread else 0.0

    def ends(confidence: float) -> tuple[float, float]:
        reach = [max(own(side, confidence), least(confidence)) for side in (below, above)]
        return math.exp(log - reach[0]), math.exp(log + reach[1])

    return Ratio(
        estimate=math.exp(log),
        interval=ends(CONFIDENCE),
        alarm=ends(confidence),
        of_means=head.mean_s / base.mean_s,
        typical_s=(base.time_s, head.time_s),
        basis=below.basis,
        tips_at=(below if log > 0 else above).tips_at(math.exp(log), confidence, margin) if noise is None else None,
        as_wide_as_spread=least(CONFIDENCE) > min(own(side, CONFIDENCE) for side in (below, above)),
    )


def _half_width(
    base: Typical, head: Typical, disturbed: float, noise: float | None, variation: LaunchVariation | None
) -> HalfWidth:
    own = [(base.error**2, float(base.degrees)), (head.error**2, float(head.degrees))]
    if noise is not None:
        return _with_noise(own, noise)
    few = sum(1 / side.launches for side in (base, head) if side.launches < ENOUGH_LAUNCHES)
    if not few:
        shown = HalfWidth(math.sqrt(sum(part for part, _ in own)), summed(own)[1], "launches")
        return _at_other_times(surer(shown, (base.launches, head.launches), variation), variation)
    own.append((disturbed**2, math.inf))
    known = variation or ASSUMED
    variance, degrees = summed([*own, (known.sd**2 * few, float(known.degrees))])
    own_error = math.sqrt(sum(part for part, _ in own))
    basis: Basis = "variation" if variation else "assumed"
    return _at_other_times(HalfWidth(math.sqrt(variance), degrees, basis, own_error, few), known)


def _with_noise(own: Sequence[tuple[float, float]], noise: float) -> HalfWidth:
    """From the variances that the steps of each launch show, and their degrees of freedom."""
    variance, degrees = summed([*own, (2 * noise**2, math.inf)])
    return HalfWidth(math.sqrt(variance), degrees, "variation", math.sqrt(sum(part for part, _ in own)))


def _at_other_times(launches: HalfWidth, variation: LaunchVariation | None) -> HalfWidth:
    """With what two runs differ by because they are made at different times."""
    if launches.share and (variation or ASSUMED).over_time:
        return launches
    variance, degrees = summed([(launches.error**2, launches.degrees), (2 * QUIET**2, math.inf)])
    own = math.hypot(launches.own, math.sqrt(2) * QUIET) if launches.share else 0.0
    return HalfWidth(math.sqrt(variance), degrees, launches.basis, own, launches.share)


def _spread(logs: Sequence[float]) -> float:
    """Of log ratios about the median one; 0 while there are too few."""
    if len(logs) < ENOUGH_PAIRS:
        return 0.0
    middle = statistics.median(logs)
    return MAD_TO_SD * statistics.median(abs(log - middle) for log in logs)
