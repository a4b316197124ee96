"""Best and safe: throughput as a function of the batch below max, and which batches thrash."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

from bench.records.verdict import Answer, Goal
from bench.search import memory
from bench.search.ceiling import Bracket
from bench.search.data import Evidence, Observation, Try
from bench.statistics.thrashing import CEILING, CLEARLY, thrashing_batches

WALK = 4
"""Number of fresh batches below max after which the exploration of the curve ends."""
NEAR_TOP = 0.95
"""Share of max above which a batch adds nothing about the curve."""
ENOUGH = 0.1
"""A batch nearer to the end of the headroom than this share is close enough."""
GAP = 0.25
"""The throughput peak is located when its neighbouring batches are within this share of it."""
RISING_GAP = 0.5
"""The same where throughput clearly rises up to max."""
FLAT_GAP = 0.4
"""The same where throughput is flat on both sides."""


class Point(NamedTuple):
    """All observations of one batch that fits, combined."""

    batch: int
    rate: float
    """Samples per second over all ranks, to compare batches: of short attempts, unless a full one was clearly slower.
    0: unknown."""
    samples_per_s: float
    """The throughput to report: of the full attempt if there is one."""
    held: float | None
    """Largest share of capacity held; of the full attempt if there is one, as in the report."""
    at_ceiling: bool
    """Whether the caching allocator held all memory. An allocator that caches nothing cannot thrash."""
    retried: bool
    """Whether the allocator had to free cached blocks and retry."""
    full: bool

    @property
    def answer(self) -> Answer:
        return Answer(batch=self.batch, samples_per_s=self.samples_per_s, held=self.held, confirmed=self.full)


class Answers(NamedTuple):
    """Best and safe, and the observations behind them."""

    best: Answer | None
    safe: Answer | None
    points: int
    thrashing: tuple[int, ...]


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
    """Sound batches within the headroom."""
    rates: Mapping[int, float]
    """Throughput of sound batches, else of hints; decides which batch to try next."""


def batches_up_to_max(evidence: Evidence, bracket: Bracket, goal: Goal) -> Batches:
    """Sort the observations up to max."""
    points = _points([o for o in evidence.seen if o.batch <= bracket.fits])
    candidates = [o for o in evidence.hints if o.batch % goal.granularity == 0]
    hints = _points([o for o in candidates if o.batch < NEAR_TOP * bracket.fits])
    thrashing = thrashing_batches(points.values())
    sound = {batch: point for batch, point in points.items() if batch not in thrashing and point.rate}
    within = {b: point for b, point in sound.items() if point.held is not None and point.held <= goal.headroom}
    unseen = {batch: point for batch, point in hints.items() if batch not in points and not point.retried}
    rates = {batch: point.rate for batch, point in (unseen | sound).items() if point.rate}
    return Batches(points, hints, thrashing, sound, within, rates)


def choose(batches: Batches) -> Answers:
    """Best and safe among the fresh batches.

    Batches that were measured in full are compared by their full attempts, as in the report.
    """
    best, safe = _fastest_in_full(batches.sound), _fastest_in_full(batches.within)
    points = sum(point.rate > 0 for point in batches.points.values())
    return Answers(best and best.answer, safe and safe.answer, points, tuple(sorted(batches.thrashing)))


def further(batches: Batches, goal: Goal, *, full_only: bool) -> Try | None:
    """The next attempt for best and safe: explore the curve, then confirm the winners. None: no more are needed."""
    if not any(point.rate for point in batches.points.values()):
        return None
    if (batch := _curve_batch(batches, goal)) is not None:
        return Try(batch=batch, full=full_only, why="looking for the batch with the highest throughput")
    if (batch := _headroom_batch(batches, goal)) is not None:
        wins = full_only or batch <= _peak(batches.rates)
        return Try(batch=batch, full=wins, why=f"looking for the best batch within {goal.headroom:.0%} of capacity")
    only = max(batches.points)
    if len(batches.points) == 1 and only > goal.granularity:
        half = max(goal.down(only / 2), goal.granularity)
        return Try(batch=half, full=full_only, why="a second point of the throughput curve")
    for name, winner in (("best", _fastest(batches.sound)), ("safe", _fastest(batches.within))):
        if winner and not winner.full:
            return Try(batch=winner.batch, full=True, why=f"confirming the {name} batch at the full step count")
    return None


def _fastest(points: Mapping[int, Point]) -> Point | None:
    return max(points.values(), key=lambda point: point.rate, default=None)


def _fastest_in_full(points: Mapping[int, Point]) -> Point | None:
    """The fastest point; if it was measured in full, the fastest of those that were, by their full attempts."""
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


def _curve_batch(batches: Batches, goal: Goal) -> int | None:
    """The batch at which the throughput curve needs another point; None if it is known well enough."""
    points, top = batches.points, max(batches.points)
    if not batches.rates:
        halved = goal.down(min(points) / 2)
        return halved or (goal.granularity if goal.granularity not in points else None)
    if sum(batch < NEAR_TOP * top for batch in points) >= WALK:
        return None
    peak = _peak(batches.rates)
    if peak not in points:
        return peak
    return _beside(peak, {**{batch: point.rate for batch, point in points.items()}, **batches.rates}, goal)


def _beside(peak: int, rates: Mapping[int, float], goal: Goal) -> int | None:
    """The middle of the wider gap beside ``peak`` that could hide a higher peak."""
    left = max((batch for batch in rates if batch < peak), default=0)
    right = min((batch for batch in rates if batch > peak), default=None)
    flat = {batch for batch in (left, right) if batch and rates[batch] >= (1 - CLEARLY) * rates[peak]}
    if right is None:
        return _middle(left, peak, (GAP if left in flat else RISING_GAP) * peak, goal)
    gap = (FLAT_GAP if flat == {left, right} else GAP) * peak
    low, high = _middle(left, peak, gap, goal), _middle(peak, right, gap, goal)
    return (high or low) if right - peak > peak - left else (low or high)


def _middle(left: int, right: int, gap: float, goal: Goal) -> int | None:
    """The candidate in the middle, if the two are further apart than ``gap``."""
    middle = goal.down((left + right) / 2)
    return middle if right - left > gap and left < middle < right else None


def _headroom_batch(batches: Batches, goal: Goal) -> int | None:
    """The batch at which the headroom probably ends; None if a faster or close enough batch is within it."""
    beyond = [batch for batch in batches.points if batch not in batches.within]
    settled = max(batches.within, default=0)
    above = min((batch for batch in beyond if batch > settled), default=None)
    if above is None or above <= goal.granularity or batches.points[above].held is None:
        return None
    if batches.within and _peak(batches.rates) <= settled:
        return None
    smallest = batches.hints.get(goal.granularity)
    if not batches.within and smallest and (smallest.held or 0) > goal.headroom:
        return goal.granularity
    crowded = len(beyond) > 3 * WALK
    batch = goal.down((settled + above) / 2) if crowded else _end_of_headroom(batches, settled, above, goal)
    batch = min(max(batch, goal.granularity), above - goal.granularity)
    near_enough = batch <= settled + ENOUGH * above or len(batches.points) > WALK + 1
    return None if batches.within and near_enough else batch


def _end_of_headroom(batches: Batches, settled: int, above: int, goal: Goal) -> int:
    """Where the headroom ends, by a line between the batches on either side; by the memory curve if one is missing.

    Memory is convex, so the line errs on the safe side.
    """
    held = {b: p.held for b, p in {**batches.hints, **batches.points}.items() if p.held is not None}
    low = max((b for b in held if settled <= b < above and held[b] <= goal.headroom), default=None)
    high = min((b for b in held if (low or 0) < b <= above and held[b] > goal.headroom), default=None)
    if low is None or high is None:
        curve = memory.fit([memory.Point(*point) for point in held.items()])
        return goal.down(min(max(curve.reaches(goal.headroom), 0), above)) if curve else 0
    return goal.down(low + (high - low) * (goal.headroom - held[low]) / (held[high] - held[low]))


def _peak(rates: Mapping[int, float]) -> int:
    """The batch with the highest throughput; the smallest of equals."""
    return max(rates, key=lambda batch: (rates[batch], -batch))
