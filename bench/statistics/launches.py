"""How much one attempt is faster than another, from their launches. Pure arithmetic on raw samples.

Steps of one process say nothing about what differs between processes: memory addresses, the cores of a process and the
other load of the machine (Kalibera and Jones, Rigorous benchmarking in reasonable time, ISMM 2013, section 5; Maricq
et al., Taming performance variability, OSDI 2018). So the unit of observation is the launch, and its value is the
logarithm of its mean step: of the slowest rank, because ranks wait for each other.

*What decides*, in `bench guide launches`, says what the interval of a ratio takes for the differences between launches.
Where it adds the standard error of a launch's own steps to a known `LaunchVariation`, part of it is in that already:
the interval may be too wide, and is not too narrow.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from bench.statistics.intervals import CONFIDENCE, Interval, block_means, standard_error, student_t

ENOUGH_LAUNCHES = 3
"""Fewest launches of a side whose own variation is used."""
MANY_LAUNCHES = 5
"""With fewer, a `LaunchVariation` of more degrees of freedom stands for a side's own variation, unless that is larger:
three launches have two degrees, of which Student's t makes hundred-fold intervals at the confidence of a table."""
WIDEST_LOG = math.log(1e9)
"""Beyond this factor to each side, an interval says only that nothing is known."""
ENOUGH_DEGREES = 2
"""Fewest degrees of freedom of a usable `LaunchVariation`: three launches of one attempt, or two of each of two."""

Basis = Literal["launches", "variation", "assumed", "mixed sources"]
"""Where the difference between launches comes from: launches of both sides, what is known of the machine, or `ASSUMED`.
Launches of mixed sources may differ for another reason, so nothing is concluded from them."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One launch of an attempt."""

    number: int
    """Launches of different cells with the same number belong to the same round."""
    mean_s: float
    """Mean step of the slowest rank."""
    error: float | None
    """Standard error of its logarithm, from batch means: a share. None for fewer than three steps."""
    degrees: int


@dataclass(frozen=True, kw_only=True)
class LaunchVariation:
    """How much launches of the same attempt differ on one machine."""

    sd: float
    """Standard deviation of the logarithm of the mean step: a share."""
    degrees: int
    source: str
    """Where it was learnt, in words."""
    over_time: bool = False
    """Whether it includes what runs that are made at different times differ by."""


ASSUMED = LaunchVariation(sd=0.05, degrees=10, source="assumed", over_time=True)
"""Where nothing is known: about twice what our own trials show (reports/compare_trials.md: 2.8 % on two CPU cores), as
uncertain as an estimate from eleven launches."""


class HalfWidth(NamedTuple):
    """How far the ratio of two mean steps may be from its estimate, as the standard error of its logarithm."""

    error: float
    degrees: float
    basis: Basis
    own: float = 0.0
    """The part of ``error`` that the steps of each launch show."""
    share: float = 0.0
    """The sum of 1 / launches of each side."""

    def interval(self, estimate: float, confidence: float = CONFIDENCE) -> Interval:
        widest = math.exp(min(student_t(self.degrees, confidence) * self.error, WIDEST_LOG))
        return estimate / widest, estimate * widest

    def tips_at(self, estimate: float, confidence: float, margin: float = 0.0) -> float | None:
        """The standard deviation between launches, a share, from which the interval would reach ``margin``; None where
        the launches of both sides show it themselves, or where the interval reaches it even without any."""
        beyond = abs(math.log(estimate)) - math.log1p(margin)
        if not self.share or beyond <= 0:
            return None
        left = (beyond / student_t(self.degrees, confidence)) ** 2 - self.own**2
        return math.sqrt(left / self.share) if left > 0 else None

    @property
    def launches_vary(self) -> float:
        """How many times as long a mean step may be as the other because launches vary, with 95 % confidence: without
        what the steps of each launch show."""
        between = HalfWidth(math.sqrt(max(0.0, self.error**2 - self.own**2)), self.degrees, self.basis)
        return between.interval(1.0)[1]


def launch_of(samples_s: Sequence[float], number: int = 1) -> Launch:
    """A launch from the steps of its slowest rank."""
    mean_s, n = statistics.fmean(samples_s), len(samples_s)
    means = block_means(samples_s)
    return Launch(
        number=number,
        mean_s=mean_s,
        error=standard_error(means) / mean_s if n >= 3 else None,
        degrees=len(means) - 1,
    )


def mean_step_s(launches: Sequence[Launch]) -> float:
    return statistics.fmean(launch.mean_s for launch in launches)


def variation_of(attempts: Iterable[Sequence[Launch]], source: str) -> LaunchVariation | None:
    """The variation of launches about the mean of their own attempt, pooled; None for too few launches."""
    sd, degrees = _pooled(attempts)
    if degrees < ENOUGH_DEGREES or not sd:  # equal launches are rounded figures
        return None
    return LaunchVariation(sd=sd, degrees=degrees, source=source)


def more_than_assumed(attempts: Iterable[Sequence[Launch]], source: str) -> LaunchVariation | None:
    """Where nothing else is known: what too few launches differ by, if that is more than `ASSUMED`. By itself, one
    degree of freedom would leave no difference certain, so it has those of `ASSUMED`.

    In 3000 simulated reports on four equal settings of which one was launched twice, this named a winner in 24 % where
    launches vary by 20 %; `ASSUMED` by itself, in 73 %. Where they vary by 5 % or less, neither named one.
    """
    sd, _ = _pooled(attempts)
    return replace(ASSUMED, sd=sd, source=source) if sd > ASSUMED.sd else None


def _pooled(attempts: Iterable[Sequence[Launch]]) -> tuple[float, int]:
    """The standard deviation of launches about the mean of their own attempt, and its degrees of freedom."""
    squares, degrees = 0.0, 0
    for launches in attempts:
        logs = [math.log(launch.mean_s) for launch in launches]
        squares += sum((log - statistics.fmean(logs)) ** 2 for log in logs)
        degrees += len(logs) - 1
    return math.sqrt(squares / degrees) if degrees else 0.0, degrees


def half_width(
    one: Sequence[Launch], other: Sequence[Launch], variation: LaunchVariation | None, *, one_run: bool = True
) -> HalfWidth:
    """Of the mean step of ``one`` divided by that of ``other``.

    A side without launches is a figure from elsewhere: one launch, of whose steps nothing is known. Launches that are
    all equal are rounded figures, which say nothing of their variation.

    Args:
        one_run: launches with the same number were made one after the other.
    """
    if min(len(one), len(other)) >= ENOUGH_LAUNCHES:
        for known in (_of_rounds, _of_launches) if one_run else (_of_launches,):
            if (own := known(one, other)) and own.error:
                return surer(own, (len(one), len(other)), variation)
    return _of_few((one, other), variation)


def surer(own: HalfWidth, launches: Sequence[int], variation: LaunchVariation | None) -> HalfWidth:
    """What ``launches`` of each side show, or where they are few, what is known of the machine: see `MANY_LAUNCHES`."""
    if variation is None or min(launches) >= MANY_LAUNCHES or own.degrees >= variation.degrees:
        return own
    known = variation.sd * math.sqrt(sum(1 / number for number in launches))
    return HalfWidth(max(own.error, known), variation.degrees, "variation")


def mean_half_width(launches: Sequence[Launch], variation: LaunchVariation | None) -> HalfWidth:
    """Of the mean step itself; see `half_width`."""
    enough = len(launches) >= ENOUGH_LAUNCHES
    if enough and (error := standard_error([math.log(launch.mean_s) for launch in launches])):
        return surer(HalfWidth(error, len(launches) - 1, "launches"), (len(launches),), variation)
    return _of_few((launches,), variation)


def _of_few(sides: Sequence[Sequence[Launch]], variation: LaunchVariation | None) -> HalfWidth:
    errors = [(launch.error, launch.degrees, len(side)) for side in sides for launch in side]
    own = [((error / n) ** 2, float(degrees)) for error, degrees, n in errors if error is not None]
    between, share = variation or ASSUMED, sum(1 / max(len(side), 1) for side in sides)
    variance, degrees = summed([(between.sd**2 * share, between.degrees), *own])
    own_error = math.sqrt(sum(part for part, _ in own))
    return HalfWidth(math.sqrt(variance), degrees, "variation" if variation else "assumed", own_error, share)


def _of_rounds(one: Sequence[Launch], other: Sequence[Launch]) -> HalfWidth | None:
    """From the differences within rounds; None where the two sides are not of the same rounds."""
    ours, theirs = ({launch.number: math.log(launch.mean_s) for launch in side} for side in (one, other))
    if ours.keys() != theirs.keys() or len(ours) < len(one) or len(theirs) < len(other):
        return None
    error = standard_error([log - theirs[number] for number, log in ours.items()])
    return HalfWidth(error, len(ours) - 1, "launches")


def _of_launches(one: Sequence[Launch], other: Sequence[Launch]) -> HalfWidth:
    logs = [[math.log(launch.mean_s) for launch in side] for side in (one, other)]
    variance, degrees = summed([(standard_error(side) ** 2, float(len(side) - 1)) for side in logs])
    return HalfWidth(math.sqrt(variance), degrees, "launches")


def summed(parts: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The sum of variances, each with its degrees of freedom, and those of the sum after Welch and Satterthwaite."""
    variance = sum(part for part, _ in parts)
    doubt = sum(part**2 / degrees for part, degrees in parts)
    return variance, variance**2 / doubt if doubt else math.inf
