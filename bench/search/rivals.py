"""The final of a search: which batches to measure in full before best and safe are named, and which differ by noise.

Only full attempts are compared for the answer. A rate of three steps after one scatters, and is too low by a share that
differs from batch to batch, so every batch whose short rate comes close enough to the fastest full one is measured in
full, too, the most promising first. On a flat curve all batches come close: the final ends with `FINALISTS` full
measurements within noise of each other. Of these, the one with the highest full rate is named; the others are listed.
"""

import math
from collections.abc import Mapping

from bench.records.verdict import Answer
from bench.search.points import Batches, Point
from bench.statistics.intervals import CONFIDENCE, student_t
from bench.statistics.ratio import QUIET

RIVAL = 0.08
"""Share by which a short rate, on the scale of full ones, may be lower than the fastest full rate: two standard
deviations of the mean of three steps that vary by 5 %, and 2 % for a bias that differs between batches."""
FINALISTS = 4
"""Number of batches within noise of each other, measured in full, after which the final ends."""
SAME = 0.01
"""Batches nearer to each other than this share of their size count as one: the larger cannot be faster by more than
this, because a step does not get shorter with the batch."""


def choose(batches: Batches, *, final: bool) -> tuple[Answer | None, Answer | None]:
    """Best and safe among the fresh batches; once the ``final`` was held, among those measured in full alone."""
    best, safe = (_fastest(group, full=final) for group in (batches.sound, batches.within))
    return best and _answer(best, batches), safe and _answer(safe, batches)


def next_finalist(batches: Batches) -> tuple[int, str] | None:
    """The next batch to measure in full, and what it may be; None when the final is over."""
    for name, group in (("best", _may_be_sound(batches)), ("safe", batches.within)):
        sound = {batch: point for batch, point in group.items() if batch in batches.sound}
        leader = _fastest(sound, full=True)
        if leader is None or not leader.full:
            if leader is not None:
                return leader.batch, f"measuring the {name} batch of the short attempts in full"
            continue
        close = [point for point in sound.values() if point.full and _within_noise(point, leader)]
        if len(close) < FINALISTS and (rival := _rival(group, leader)):
            return rival.batch, f"it may be faster than {leader.batch}: measuring both in full"
    return None


def fastest_short(batches: Batches) -> int:
    """The batch with the highest rate of those that were never measured in full."""
    short = [point for point in batches.points.values() if not point.full]
    return max(short, key=lambda point: (point.short, -point.batch)).batch


def _may_be_sound(batches: Batches) -> Mapping[int, Point]:
    """Sound batches, and those that only a short attempt's rate makes look as if they thrashed."""
    suspects = {b: batches.points[b] for b in batches.thrashing if not batches.points[b].retried}
    return {**batches.sound, **{b: point for b, point in suspects.items() if not point.full}}


def _rival(group: Mapping[int, Point], leader: Point) -> Point | None:
    measured = [point.batch for point in group.values() if point.full]
    return max(
        (
            point
            for point in group.values()
            if not point.full
            and point.rate >= (1 - RIVAL) * leader.rate
            and all(abs(point.batch - other) > SAME * other for other in measured)
        ),
        key=lambda point: (point.rate, -point.batch),
        default=None,
    )


def _fastest(points: Mapping[int, Point], *, full: bool) -> Point | None:
    """The fastest, the smallest of equals; with ``full``, of those measured in full if there is any."""
    measured = [point for point in points.values() if point.full] if full else []
    return max(measured or points.values(), key=lambda point: (point.rate, -point.batch), default=None)


def _within_noise(one: Point, other: Point) -> bool:
    """Whether the 95 % interval of the ratio of two full rates contains 1."""
    error = math.hypot(one.error, other.error, QUIET, QUIET)
    return abs(math.log(one.rate / other.rate)) <= student_t(math.inf, CONFIDENCE) * error


def _answer(point: Point, batches: Batches) -> Answer:
    others = [other for other in batches.sound.values() if other.full and other.batch != point.batch]
    return Answer(
        batch=point.batch,
        samples_per_s=point.rate if point.full else point.short or point.rate,
        held=point.held,
        may_hold=point.may_hold,
        confirmed=point.full,
        even_with=tuple(other.batch for other in others if point.full and _within_noise(point, other)),
    )
