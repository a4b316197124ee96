"""Best and safe: how throughput runs over the batch below max, and which batches thrash."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

from bench.records.verdict import Answer, Goal
from bench.search import memory
from bench.search.ceiling import Bracket
from bench.search.data import Evidence, Observation, Try
from bench.statistics.thrashing import CEILING, CLEARLY, thrashing_batches

WALK = 4
"""Fresh batches below max after which the walk over the curve ends."""
NEAR_TOP = 0.95
"""Share of max above which a batch says nothing about the curve that max does not."""
ENOUGH = 0.1
"""Batches nearer to the end of the headroom than this share are not improved upon."""
GAP = 0.25
"""A peak is located when the batches beside it are no further off than this share of it."""
RISING_GAP = 0.5
"""The same where throughput plainly rises up to max."""
FLAT_GAP = 0.4
"""The same where throughput is flat on both sides."""


class Point(NamedTuple):
    """All that was seen of one batch that fits."""

    batch: int
    rate: float
    """Samples per second, global, to compare by: of short attempts, unless a full one fell clearly short of them.
    0: unknown."""
    samples_per_s: float
    """To report: of the full attempt when there is one."""
    held: float | None
    """Largest share of capacity held; of the full attempt when there is one, as in the report's row."""
    at_ceiling: bool
    """Whether an allocator was seen to hold all there is; one that keeps no blocks cannot thrash."""
    retried: bool
    full: bool

    @property
    def answer(self) -> Answer:
        return Answer(batch=self.batch, samples_per_s=self.samples_per_s, held=self.held, confirmed=self.full)


class Answers(NamedTuple):
    """Best and safe, with what they rest on."""

    best: Answer | None
    safe: Answer | None
    points: int
    thrashing: tuple[int, ...]


class Known(NamedTuple):
    """What is known of the batches up to max, by batch."""

    points: Mapping[int, Point]
    """Fresh."""
    hints: Mapping[int, Point]
    """The scout's, and what else is no evidence."""
    thrashing: frozenset[int]
    sound: Mapping[int, Point]
    """Fresh, does not thrash, and its throughput is known."""
    within: Mapping[int, Point]
    """Sound and within the headroom."""
    rates: Mapping[int, float]
    """Throughput of what is sound, and the scout's where nothing better is known: where to look."""


def know(known: Evidence, bracket: Bracket, goal: Goal) -> Known:
    """Sort what was seen up to max."""
    points = _points([o for o in known.seen if o.batch <= bracket.fits])
    candidates = [o for o in known.hints if o.batch % goal.granularity == 0]
    hints = _points([o for o in candidates if o.batch < NEAR_TOP * bracket.fits])
    thrashing = thrashing_batches(points.values())
    sound = {batch: point for batch, point in points.items() if batch not in thrashing and point.rate}
    within = {b: point for b, point in sound.items() if point.held is not None and point.held <= goal.headroom}
    unseen = {batch: point for batch, point in hints.items() if batch not in points and not point.retried}
    rates = {batch: point.rate for batch, point in (unseen | sound).items() if point.rate}
    return Known(points, hints, thrashing, sound, within, rates)


def choose(known: Known) -> Answers:
    """Best and safe among the fresh points.

    Which of those that were measured in full is the fastest, their full attempts say: the report shows no others.
    """
    best, safe = _fastest_in_full(known.sound), _fastest_in_full(known.within)
    points = sum(point.rate > 0 for point in known.points.values())
    return Answers(best and best.answer, safe and safe.answer, points, tuple(sorted(known.thrashing)))


def further(known: Known, goal: Goal, *, full_only: bool) -> Try | None:
    """The attempt that is still needed to know best and safe: walk the curve, then confirm the winners."""
    if not any(point.rate for point in known.points.values()):
        return None
    if (batch := _curve_batch(known, goal)) is not None:
        return Try(batch=batch, full=full_only, why="looking for the batch with the highest throughput")
    if (batch := _headroom_batch(known, goal)) is not None:
        wins = full_only or batch <= _peak(known.rates)
        return Try(batch=batch, full=wins, why=f"looking for the best batch within {goal.headroom:.0%} of capacity")
    only = max(known.points)
    if len(known.points) == 1 and only > goal.granularity:
        half = max(goal.down(only / 2), goal.granularity)
        return Try(batch=half, full=full_only, why="a second point of the throughput curve")
    for name, winner in (("best", _fastest(known.sound)), ("safe", _fastest(known.within))):
        if winner and not winner.full:
            return Try(batch=winner.batch, full=True, why=f"confirming the {name} batch at the full step count")
    return None


def _fastest(points: Mapping[int, Point]) -> Point | None:
    return max(points.values(), key=lambda point: point.rate, default=None)


def _fastest_in_full(points: Mapping[int, Point]) -> Point | None:
    """The fastest where that was not confirmed."""
    winner = _fastest(points)
    if winner is None or not winner.full:
        return winner
    return max((point for point in points.values() if point.full), key=lambda point: point.samples_per_s)


def _points(fitted: Sequence[Observation]) -> dict[int, Point]:
    groups: dict[int, list[Observation]] = {}
    for o in fitted:
        if o.outcome == "ok":
            groups.setdefault(o.batch, []).append(o)
    return {batch: _point(batch, group) for batch, group in sorted(groups.items())}


def _point(batch: int, group: Sequence[Observation]) -> Point:
    short, full = ([o.samples_per_s for o in group if o.samples_per_s and o.full == kind] for kind in (False, True))
    rate, full_rate = (median(rates) if rates else 0.0 for rates in (short, full))
    was_full = any(o.full for o in group)
    fell_short = 0 < full_rate < (1 - CLEARLY) * rate
    return Point(
        batch,
        full_rate if fell_short or not rate else rate,
        full_rate or rate,
        max((o.footprint for o in group if o.footprint is not None and o.full >= was_full), default=None),
        at_ceiling=any(o.reserved_bytes is not None and (o.footprint or 0) >= CEILING for o in group),
        retried=any(o.alloc_retries for o in group),
        full=was_full,
    )


def _curve_batch(known: Known, goal: Goal) -> int | None:
    """Where the throughput curve is not known well enough."""
    points, top = known.points, max(known.points)
    if not known.rates:
        halved = goal.down(min(points) / 2)
        return halved or (goal.granularity if goal.granularity not in points else None)
    if sum(batch < NEAR_TOP * top for batch in points) >= WALK:
        return None
    peak = _peak(known.rates)
    if peak not in points:
        return peak
    return _beside(peak, {**{batch: point.rate for batch, point in points.items()}, **known.rates}, goal)


def _beside(peak: int, rates: Mapping[int, float], goal: Goal) -> int | None:
    """The middle of the wider gap beside ``peak`` that could hide a higher one."""
    left = max((batch for batch in rates if batch < peak), default=0)
    right = min((batch for batch in rates if batch > peak), default=None)
    flat = {batch for batch in (left, right) if batch and rates[batch] >= (1 - CLEARLY) * rates[peak]}
    if right is None:
        return _middle(left, peak, (GAP if left in flat else RISING_GAP) * peak, goal)
    gap = (FLAT_GAP if flat == {left, right} else GAP) * peak
    low, high = _middle(left, peak, gap, goal), _middle(peak, right, gap, goal)
    return (high or low) if right - peak > peak - left else (low or high)


def _middle(left: int, right: int, gap: float, goal: Goal) -> int | None:
    """The candidate in the middle when the two are further apart than ``gap``."""
    middle = goal.down((left + right) / 2)
    return middle if right - left > gap and left < middle < right else None


def _headroom_batch(known: Known, goal: Goal) -> int | None:
    """Where the headroom is expected to end, unless a faster or a near enough batch is known to be within it."""
    beyond = [batch for batch in known.points if batch not in known.within]
    settled = max(known.within, default=0)
    above = min((batch for batch in beyond if batch > settled), default=None)
    if above is None or above <= goal.granularity or known.points[above].held is None:
        return None
    if known.within and _peak(known.rates) <= settled:
        return None
    smallest = known.hints.get(goal.granularity)
    if not known.within and smallest and (smallest.held or 0) > goal.headroom:
        return goal.granularity
    crowded = len(beyond) > 3 * WALK
    batch = goal.down((settled + above) / 2) if crowded else _end_of_headroom(known, settled, above, goal)
    batch = min(max(batch, goal.granularity), above - goal.granularity)
    near_enough = batch <= settled + ENOUGH * above or len(known.points) > WALK + 1
    return None if known.within and near_enough else batch


def _end_of_headroom(known: Known, settled: int, above: int, goal: Goal) -> int:
    """By a straight line between the batches that are known on either side of it; with none below, by a fit.

    Memory is convex, so the line errs on the safe side.
    """
    held = {b: p.held for b, p in {**known.hints, **known.points}.items() if p.held is not None}
    low = max((b for b in held if settled <= b < above and held[b] <= goal.headroom), default=None)
    high = min((b for b in held if (low or 0) < b <= above and held[b] > goal.headroom), default=None)
    if low is None or high is None:
        curve = memory.fit([memory.Point(*point) for point in held.items()])
        return goal.down(min(max(curve.reaches(goal.headroom), 0), above)) if curve else 0
    return goal.down(low + (high - low) * (goal.headroom - held[low]) / (held[high] - held[low]))


def _peak(rates: Mapping[int, float]) -> int:
    """The batch with the highest throughput; the smallest such."""
    return max(rates, key=lambda batch: (rates[batch], -batch))
