"""Whether more steps of one run are slow than of another, and how much longer that makes the mean step. Pure.

`ratio` judges the typical step: the mean of the faster half. It does not see a change that affects fewer than half of
the steps, such as a checkpoint, a garbage collection or a slow shard at every third step. The mean step does, but other
work on the machine lengthens it, too. So head has a longer tail only if both of these hold:

*More steps are slow, or slow steps take longer.* A step is slow if it takes at least `SLOW` times the typical step of
its own run. The difference of the two shares of slow steps exceeds its own error, or that of the time that they take
beyond the typical step does: where other work makes a third of all steps slow in both runs, only their size tells a
change. Both have the confidence of an alarm for all attempts together. The errors come from the stretches of each run
(`intervals.blocks`). A burst of other work makes neighbors slow, all in a few stretches: these vary widely, and a
burst is no change.

*The mean step is longer* by more than the margin, with 95 % confidence. The interval has the terms of `ratio`: the
standard errors of both means, from batch means; the difference between launches; and the
disturbance of head, because what disturbs the faster half of its steps disturbs the other one, too. One more term is
the tail of base,

    tail = ln(mean step / typical step)

because a run that has a tail without the change may have another one the next time. A standard deviation that is given
replaces the last three. For a shorter tail, base and head change places.

What remains is other work that hits single steps throughout one run and not the other. No step time shows whose work it
is; `bench.report.compare` looks at what the machine recorded.

In 600 simulations of each kind, with 50 steps, 16 steps doubled at random places were found in 97 to 99 %, at 1 to 5 %
variation of the others. Two runs with equal noise (steady, spikes, bursts, log-normal, or a tail in both) were called
different in at most 0.4 %. tests/statistics/test_tail.py repeats this with fewer trials.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from bench.statistics.intervals import CONFIDENCE, Interval, block_means, standard_error, student_t
from bench.statistics.launches import ASSUMED, LaunchVariation, summed
from bench.statistics.ratio import Steps, Typical, confidence_of, typical_of_launches, typical_step

SLOW = 1.25
"""A step is slow if it takes this many typical steps."""


@dataclass(frozen=True, kw_only=True)
class SlowSteps:
    """The steps of one run that take at least `SLOW` times its typical step."""

    n_steps: int
    """All steps of the run."""
    indices: tuple[int, ...]
    """Which are slow; the first step is 0."""
    times: Interval | None
    """The shortest and the longest of them in typical steps; None if there is none."""

    @property
    def share(self) -> float:
        return len(self.indices) / self.n_steps


@dataclass(frozen=True, kw_only=True)
class Tail:
    """The slow steps of base and head, and what they do to the mean."""

    base: SlowSteps
    head: SlowSteps
    of_means: float
    """Mean step of head divided by that of base."""
    interval: Interval
    """Where it lies with 95 % confidence."""
    more: bool
    """Whether more of head's steps are slow, or slow by more, with the confidence of an alarm."""
    fewer: bool
    """The same of base's."""

    def longer(self, margin: float) -> bool:
        """Whether head has more slow steps, which lengthen its mean step by more than ``margin``."""
        return self.more and self.interval[0] > 1 + margin

    def shorter(self, margin: float) -> bool:
        return self.fewer and self.interval[1] < 1 / (1 + margin)


def tails(
    pairs: Sequence[tuple[Sequence[Steps], Sequence[Steps]]],
    noise: float | None = None,
    variation: LaunchVariation | None = None,
) -> list[Tail | None]:
    """The tails of each pair of base and head; None where one has fewer than three steps.

    Args:
        pairs: the steps of each launch of base, and of head.
        noise: standard deviation of every run, as a share, instead of an estimate from its own steps.
        variation: between launches on this machine, if known.
    """
    measured = [(_run(base), _run(head)) for base, head in pairs]
    n_pairs = sum(bool(base and head) for base, head in measured)
    return [
        _tail(base, head, noise, variation or ASSUMED, n_pairs) if base and head else None for base, head in measured
    ]


def _joined(launches: Sequence[Steps]) -> Steps:
    """The steps of all launches, one launch after the other.

    Each launch is scaled to the typical step of all: a slower launch is not a tail of slow steps.
    """
    known = typical_of_launches(launches)
    if known is None or len(launches) < 2:
        return launches[0] if launches else []
    scaled = []
    for ranks_s in launches:
        typical = typical_step(ranks_s)
        factor = known.time_s / typical.time_s if typical else 1.0
        scaled.append([[step_s * factor for step_s in times_s] for times_s in ranks_s])
    return [tuple(chain.from_iterable(of_rank)) for of_rank in zip(*scaled, strict=True)]


@dataclass(frozen=True)
class _Run:
    launches: int
    typical: Typical
    slow: SlowSteps
    mean_error: float
    """Standard error of the mean's logarithm."""
    share_error: float
    """Standard error of the share of slow steps."""
    excess: float
    """What slow steps take beyond the typical step, over all steps, in typical steps."""
    excess_error: float

    @property
    def tail(self) -> float:
        return math.log(self.typical.mean_s / self.typical.time_s)


def _run(launches: Sequence[Steps]) -> _Run | None:
    ranks_s = _joined(launches)
    typical = typical_step(ranks_s)
    if typical is None:
        return None
    steps_s = [max(times_s) for times_s in zip(*ranks_s, strict=True)]
    slow = [step_s >= SLOW * typical.time_s for step_s in steps_s]
    excess = [step_s / typical.time_s - 1 if is_slow else 0.0 for step_s, is_slow in zip(steps_s, slow, strict=True)]
    times = [step_s / typical.time_s for step_s, is_slow in zip(steps_s, slow, strict=True) if is_slow]
    return _Run(
        launches=len(launches),
        typical=typical,
        slow=SlowSteps(
            n_steps=len(steps_s),
            indices=tuple(index for index, is_slow in enumerate(slow) if is_slow),
            times=(min(times), max(times)) if times else None,
        ),
        mean_error=standard_error(block_means(steps_s)) / typical.mean_s,
        share_error=standard_error(block_means([float(is_slow) for is_slow in slow])),
        excess=statistics.fmean(excess),
        excess_error=standard_error(block_means(excess)),
    )


def _tail(base: _Run, head: _Run, noise: float | None, variation: LaunchVariation, n_pairs: int) -> Tail:
    confidence = confidence_of(n_pairs)
    of_means = head.typical.mean_s / base.typical.mean_s

    def half_width(longer: _Run, shorter: _Run) -> float:
        if noise is not None:
            between = [(2 * noise**2, math.inf)]
        else:
            of_launches = variation.sd**2 * (1 / base.launches + 1 / head.launches)
            between = [
                (longer.typical.disturbed**2 + shorter.tail**2, math.inf),
                (of_launches, float(variation.degrees)),
            ]
        return _half_width([base.mean_error, head.mean_error], _degrees(base, head), CONFIDENCE, between)

    # Two tests, of the shares and of the sizes: each with half of the probability of a false alarm.
    confidence = 1 - (1 - confidence) / 2
    share_reach = _half_width([base.share_error, head.share_error], _degrees(base, head), confidence)
    excess_reach = _half_width([base.excess_error, head.excess_error], _degrees(base, head), confidence)
    more, longer = head.slow.share - base.slow.share, head.excess - base.excess
    return Tail(
        base=base.slow,
        head=head.slow,
        of_means=of_means,
        interval=(of_means * math.exp(-half_width(head, base)), of_means * math.exp(half_width(base, head))),
        more=more > share_reach or longer > excess_reach,
        fewer=-more > share_reach or -longer > excess_reach,
    )


def _degrees(*runs: _Run) -> list[int]:
    return [run.typical.degrees for run in runs]


def _half_width(
    errors: Iterable[float], degrees: Iterable[int], confidence: float, more: Sequence[tuple[float, float]] = ()
) -> float:
    """Half an interval around a sum of estimates with these standard errors, and with ``more`` variances, each with its
    degrees of freedom."""
    parts = [(error**2, float(n)) for error, n in zip(errors, degrees, strict=True)]
    variance, of_sum = summed([*parts, *more])
    return student_t(of_sum, confidence) * math.sqrt(variance)
