"""What was observed, by batch: rates on one scale, the largest peak, and how far peaks differ between launches."""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from bench.records.verdict import Goal
from bench.search.data import Evidence, Observation
from bench.statistics.thrashing import CEILING, Fit, thrashing_batches

NEAR_TOP = 0.95
"""Share of max above which a batch adds nothing about the curve."""


class Point(NamedTuple):
    """All observations of one batch that fits, combined."""

    batch: int
    rate: float
    """Samples per second over all ranks, to compare batches: of the full attempt if there is one. Otherwise of short
    ones, times what full attempts of this cell show above short ones. 0: unknown."""
    short: float
    """As short attempts showed it. 0: unknown."""
    held: float | None
    """Largest share of capacity held; of the full attempt if there is one, as in the report."""
    may_hold: float | None
    """Largest share of capacity that any attempt held, plus the spread between launches."""
    at_ceiling: bool
    """Whether the caching allocator held all memory. An allocator that caches nothing cannot thrash."""
    retried: bool
    """Whether the allocator had to free cached blocks and retry."""
    full: bool
    error: float
    """Standard error of the full rate, as a share; of its steps alone."""


class Batches(NamedTuple):
    """What was observed of the batches up to max, by batch."""

    points: Mapping[int, Point]
    """Batches observed in fresh processes."""
    hints: Mapping[int, Point]
    """Batches known only from the scout and other hints."""
    thrashing: frozenset[int]
    sound: Mapping[int, Point]
    """Fresh batches that do not thrash and whose throughput is known."""
    within: Mapping[int, Point]
    """Sound batches of which the next launch stays within the headroom, too."""
    rates: Mapping[int, float]
    """Throughput of sound batches, else of hints; decides which batch to try next."""
    peak_spread: float | None
    """Largest difference between two launches of one batch, as a share of capacity. None: no batch has two."""
    alike: bool
    """Whether rates of short and full attempts can be compared: a batch has both, or all attempts are of one kind."""


def batches_up_to_max(evidence: Evidence, fits: int, goal: Goal) -> Batches:
    """Sort the observations up to max: ``fits`` is the largest batch that fits."""
    fitted = _by_batch(o for o in evidence.seen if o.batch <= fits)
    full_over_short = _full_over_short(fitted.values())
    spread = _peak_spread(fitted.values())
    points = {batch: _point(batch, group, full_over_short or 1.0, spread) for batch, group in fitted.items()}
    candidates = (o for o in evidence.hints if goal.tries(o.batch) and o.batch < NEAR_TOP * fits)
    hints = _scaled(
        {b: _point(b, group, full_over_short or 1.0, spread) for b, group in _by_batch(candidates).items()}, points
    )
    thrashing = thrashing_batches(Fit(p.batch, p.rate, p.at_ceiling, p.retried) for p in points.values())
    sound = {batch: point for batch, point in points.items() if batch not in thrashing and point.rate}
    within = {b: point for b, point in sound.items() if point.may_hold is not None and point.may_hold <= goal.headroom}
    unseen = {batch: point for batch, point in hints.items() if batch not in points and not point.retried}
    rates = {batch: point.rate for batch, point in (unseen | sound).items() if point.rate}
    full, only_short = ([p for p in points.values() if p.rate and p.full == kind] for kind in (True, False))
    alike = full_over_short is not None or not (full and only_short)
    return Batches(points, hints, thrashing, sound, within, rates, spread, alike)


def _by_batch(observations: Iterable[Observation]) -> dict[int, list[Observation]]:
    groups: dict[int, list[Observation]] = {}
    for o in sorted(observations, key=lambda o: o.batch):
        if o.outcome == "ok":
            groups.setdefault(o.batch, []).append(o)
    return groups


def _rate(group: Sequence[Observation], *, full: bool) -> float:
    """The median rate of one kind of attempt; 0: unknown."""
    rates = [o.samples_per_s for o in group if o.samples_per_s and o.full == full]
    return median(rates) if rates else 0.0


def _full_over_short(groups: Iterable[Sequence[Observation]]) -> float | None:
    """How much faster full attempts of a batch are than short ones, which count cold steps; None: no batch has both.

    Never below 1: a batch whose full attempt is slower has slowed down, and others need not.
    """
    both = [(_rate(group, full=True), _rate(group, full=False)) for group in groups]
    ratios = [full / short for full, short in both if full and short]
    return max(1.0, median(ratios)) if ratios else None


def _point(batch: int, group: Sequence[Observation], full_over_short: float, spread: float | None) -> Point:
    short, full = _rate(group, full=False), _rate(group, full=True)
    was_full = any(o.full for o in group)
    held = [(o.footprint, o.full) for o in group if o.footprint is not None]
    errors = [o.error for o in group if o.full and o.error is not None]
    return Point(
        batch,
        rate=full or short * full_over_short,
        short=short,
        held=max((share for share, of_full in held if of_full >= was_full), default=None),
        may_hold=max(share for share, _ in held) + (spread or 0.0) if held else None,
        at_ceiling=any(o.reserved_bytes is not None and (o.footprint or 0) >= CEILING for o in group),
        retried=any(o.alloc_retries for o in group),
        full=was_full,
        error=max(errors, default=0.0) / math.sqrt(max(len(errors), 1)),
    )


def _scaled(hints: Mapping[int, Point], points: Mapping[int, Point]) -> dict[int, Point]:
    """``hints`` with the rates that batches with evidence, too, show to be the right ones."""
    both = [points[batch].rate / hint.rate for batch, hint in hints.items() if hint.rate and batch in points]
    scale = median([ratio for ratio in both if ratio] or [1.0])
    return {batch: hint._replace(rate=hint.rate * scale) for batch, hint in hints.items()}


def _peak_spread(groups: Iterable[Sequence[Observation]]) -> float | None:
    launches = [[o.footprint for o in group if o.footprint is not None] for group in groups]
    return max((max(held) - min(held) for held in launches if len(held) > 1), default=None)
