"""The figures that claims are about, and where another run would find them. Pure.

An interval includes the scatter of all sides, between steps and between launches: see `bench.statistics.launches`. A
peak of memory is taken as it is.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple, get_args

from bench.records import figures
from bench.records.claim import Claim
from bench.report.rows import Row, Times
from bench.report.speedup import throughput_ratio, throughput_reach
from bench.statistics.intervals import Interval, difference_interval, mean_interval, student_t
from bench.statistics.launches import ASSUMED, Basis
from bench.statistics.verdict import confidence_of

THROUGHPUT = (figures.THROUGHPUT.name, figures.STEP_TIME.name)
"""Metrics of the throughput window."""
PHASE = "_s_mean"
"""The end of a metric that is a phase."""


class Scattered(NamedTuple):
    """Where a figure lies."""

    interval: Interval
    basis: Basis | None
    """Where the scatter between launches comes from; None where none is counted."""


def value_of(row: Row, metric: str) -> float | None:
    """The measured value; None where it is unknown."""
    if metric.endswith(PHASE):
        times = _phase(row, metric)
        return times.mean_s if times else None
    if row.measured is None:
        return None
    if metric not in THROUGHPUT:
        return row.measured.figures.get(metric)
    return row.measured.samples_per_s_global if metric == THROUGHPUT[0] else row.measured.step_time_s_rank_max


def interval_of(
    claim: Claim, figure: float, of: Row, against: Row | None = None, comparisons: int = 1
) -> Scattered | None:
    """Around the figure of a claim, both sides taken as independent; None where the scatter of one is unknown.

    Args:
        comparisons: number of claims that are judged together.
    """
    confidence = confidence_of(comparisons)
    ours = _of_one(of, claim.metric, confidence)
    if against is None or ours is None:
        return ours
    theirs = _of_one(against, claim.metric, confidence)
    if theirs is None:
        return None
    basis = _weakest(side.basis for side in (ours, theirs))
    if not claim.ratio:
        return Scattered(difference_interval(figure, ours.interval, theirs.interval), basis)
    if claim.metric in THROUGHPUT:
        ratio = throughput_ratio(of, against, comparisons)
        widest, basis = ratio.alarm[1] / ratio.estimate, ratio.basis
    else:
        # A mean that may be 0, such as a short wait for data, can be any multiple of another one.
        sides = ours.interval, theirs.interval
        known = min(low for low, _ in sides) > 0
        widest = math.exp(math.hypot(*(math.log(high / low) / 2 for low, high in sides))) if known else math.inf
    return Scattered((figure / widest, figure * widest), basis)  # on a logarithmic scale: the same for times and rates


def _of_one(row: Row, metric: str, confidence: float) -> Scattered | None:
    """Where one side lies."""
    if figures.METRICS[metric].of_rank:  # one peak does not scatter from step to step
        value = value_of(row, metric)
        return None if value is None else Scattered((value, value), None)
    if metric in THROUGHPUT:
        reach = throughput_reach(row)
        value = row.rate if metric == THROUGHPUT[0] else row.batch_global / row.rate
        return None if reach is None else Scattered(reach.interval(value, confidence), reach.basis)
    times = _phase(row, metric)
    steps = mean_interval(times.samples_s, confidence) if times else None
    return _of_phase(row, steps, confidence) if steps else None


def _phase(row: Row, metric: str) -> Times | None:
    """The samples of a phase, or of all phases together; None where they are unknown."""
    phases, name = row.measured.phases if row.measured else None, metric.removesuffix(PHASE)
    return None if phases is None else phases.total if name == "total" else phases.parts.get(name)


def _of_phase(row: Row, steps: Interval, confidence: float) -> Scattered:
    """``steps`` is the interval from the steps of one launch; another launch differs by more."""
    scatter = row.measured.scatter if row.measured else None
    between = scatter or ASSUMED
    mean, half = sum(steps) / 2, (steps[1] - steps[0]) / 2
    reach = math.hypot(half, student_t(between.degrees, confidence) * between.sd * mean)
    return Scattered((mean - reach, mean + reach), "scatter" if scatter else "assumed")


def _weakest(bases: Iterable[Basis | None]) -> Basis | None:
    order = get_args(Basis)
    return max((basis for basis in bases if basis), key=order.index, default=None)
