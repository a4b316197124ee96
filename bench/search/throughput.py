"""Best and safe: which batch shows more of throughput as a function of the batch below max."""

import math
from collections.abc import Mapping

from bench.records.verdict import Goal
from bench.search import memory_curve
from bench.search.data import Try
from bench.search.points import NEAR_TOP, Batches
from bench.search.rivals import fastest_short, next_finalist

WALK = 6
"""Number of batches measured in full between half of the peak and max after which the exploration of the curve ends.
Short attempts, which may be many near the ceiling, looked for max."""
ENOUGH = 0.1
"""A batch nearer to the end of the headroom than this share is close enough."""
WORTH = 0.01
"""Share by which a batch between two known ones may be faster than the peak without being looked for."""
WIDE = 0.5
"""A gap beside the peak that is larger than this share of it is searched in any case."""
NOISE = 0.01
"""Share by which the difference between two rates may be off, and a line through them."""
NARROW = 0.06
"""A gap beside the peak that is smaller than this share of it is not searched."""


def further(batches: Batches, goal: Goal, *, full_only: bool) -> Try | None:
    """The next attempt for best and safe: explore the curve, then hold the final. None: no more are needed."""
    if not batches.alike:
        short = fastest_short(batches)
        return Try(batch=short, full=True, why="measuring the fastest of the short trials in full")
    if (batch := _curve_batch(batches, goal)) is not None:
        return Try(batch=batch, full=True, why="looking for the batch with the highest throughput")
    if (batch := _headroom_batch(batches, goal)) is not None:
        wins = full_only or batch <= _peak(batches.rates)
        return Try(batch=batch, full=wins, why=f"looking for the best batch within {goal.headroom:.0%} of capacity")
    only = max(batches.points)
    if len(batches.points) == 1 and only > goal.granularity:
        half = max(goal.down(only / 2), goal.granularity)
        return Try(batch=half, full=True, why="a second point of the throughput curve")
    finalist = next_finalist(batches)
    return finalist and Try(batch=finalist[0], full=True, why=finalist[1])


def _curve_batch(batches: Batches, goal: Goal) -> int | None:
    """The batch at which the throughput curve needs another point; None if it is known well enough."""
    points, top = batches.points, max(batches.points)
    if not batches.rates:
        halved = goal.down(min(points) / 2)
        return halved or (goal.granularity if goal.granularity not in points else None)
    peak = _peak(batches.rates)
    if sum(peak / 2 <= batch < NEAR_TOP * top and point.full for batch, point in points.items()) >= WALK:
        return None
    if peak not in points:
        return peak
    return _beside(peak, {**{batch: point.rate for batch, point in points.items()}, **batches.rates}, goal)


def _beside(peak: int, rates: Mapping[int, float], goal: Goal) -> int | None:
    """The middle of the gap beside ``peak`` that may hide the higher one, if either may be worth an attempt.

    Up to its peak, a curve bends down: in a gap it stays below the line through the two points before the gap. Beyond
    the peak it may fall off a cliff, so points there bound only what is to the left of the peak.
    """
    known = sorted({0: 0.0, **rates}.items())
    at = [batch for batch, _ in known].index(peak)
    hidden = dict[int, float]()
    for left in (at - 1, at):
        if left + 1 < len(known) and (middle := _middle(known[left][0], known[left + 1][0], NARROW * peak, goal)):
            wide = known[left + 1][0] - known[left][0] > WIDE * peak and known[-1][0] > peak
            lines = [known[left - 1 : left + 1]] if left else []
            lines += [known[at : at + 2]] if left < at < len(known) - 1 else []
            below = min((_extended(line[0], line[1], middle) for line in lines), default=math.inf)
            hidden[middle] = math.inf if wide else below
    best = max(hidden, key=lambda middle: (hidden[middle], middle), default=None)
    return best if best is not None and hidden[best] > (1 + WORTH) * rates[peak] else None


def _extended(one: tuple[int, float], other: tuple[int, float], batch: int) -> float:
    """The line through two points, at ``batch``, as high as their noise allows."""
    (left, low), (right, high) = one, other
    noise = NOISE * max(low, high) * min(abs(batch - left), abs(batch - right)) / (right - left)
    return low + (high - low) / (right - left) * (batch - left) + noise


def _middle(left: int, right: int, gap: float, goal: Goal) -> int | None:
    """The candidate in the middle, if the two are further apart than ``gap``."""
    middle = goal.down((left + right) / 2)
    middle = goal.up(left) if middle == left else middle
    return middle if right - left > gap and left < middle < right else None


def _headroom_batch(batches: Batches, goal: Goal) -> int | None:
    """The batch at which the headroom probably ends; None if a faster or close enough batch is within it."""
    beyond = [batch for batch in batches.points if batch not in batches.within]
    settled = max(batches.within, default=0)
    above = min((batch for batch in beyond if batch > settled), default=None)
    if above is None or above <= goal.granularity or batches.points[above].may_hold is None:
        return None
    if batches.within and _peak(batches.rates) <= settled:
        return None
    smallest = batches.hints.get(goal.granularity)
    if not batches.within and smallest and (smallest.may_hold or 0) > goal.headroom:
        return goal.granularity
    crowded = len(beyond) > 3 * WALK
    batch = goal.down((settled + above) / 2) if crowded else _end_of_headroom(batches, settled, above, goal)
    batch = min(max(batch, goal.granularity), goal.down(above - 1))
    near_enough = batch <= settled + ENOUGH * above or sum(point.full for point in batches.points.values()) > WALK + 1
    return None if batches.within and near_enough else batch


def _end_of_headroom(batches: Batches, settled: int, above: int, goal: Goal) -> int:
    """Where the headroom ends, by a line between the batches on either side; by the memory curve if one is missing.

    Memory is convex, so the line errs on the safe side.
    """
    held = {b: p.may_hold for b, p in {**batches.hints, **batches.points}.items() if p.may_hold is not None}
    low = max((b for b in held if settled <= b < above and held[b] <= goal.headroom), default=None)
    high = min((b for b in held if (low or 0) < b <= above and held[b] > goal.headroom), default=None)
    if low is None or high is None:
        curve = memory_curve.fit([memory_curve.Point(*point) for point in held.items()])
        return goal.down(min(max(curve.reaches(goal.headroom), 0), above)) if curve else 0
    return goal.down(low + (high - low) * (goal.headroom - held[low]) / (held[high] - held[low]))


def _peak(rates: Mapping[int, float]) -> int:
    """The batch with the highest throughput; the smallest of equals."""
    return max(rates, key=lambda batch: (rates[batch], -batch))
