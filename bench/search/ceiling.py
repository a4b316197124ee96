"""Max: the bracket between the largest batch that fits and the smallest that does not, closed in few attempts."""

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from bench.records.verdict import Certificate, Goal
from bench.search import memory
from bench.search.data import Evidence, Observation, Scout, Try

NEAR = 0.98
"""A failure where the fit says at least this share of capacity is noise; below it, the fit is not believed."""
PATIENCE = 5
"""Attempts near the ceiling after which the fit is no longer believed."""
CONTRADICTIONS = 3
"""Failures at or below a batch that had fitted, after which the bracket cannot be certified."""


class Bracket(NamedTuple):
    """What evidence says. Every fit above a failure is left out: a batch that ran out once may do so again."""

    fits: int
    """0: none fits as far as is known."""
    fails: int | None

    def certificate(self, goal: Goal) -> Certificate | None:
        if self.fails == goal.granularity:
            return "nothing_fits"
        if self.fits == goal.cap:
            return "cap_fits"
        if self.fails is None or not self.fits:
            return None
        if self.fails - self.fits == goal.granularity:
            return "next_fails"
        return "tolerance" if self.fails - self.fits <= goal.width(self.fits) else None


def bracket_of(seen: Sequence[Observation]) -> Bracket:
    """The bracket that ``seen`` leaves open."""
    fails = min((o.batch for o in seen if o.outcome == "oom"), default=None)
    fits = max((o.batch for o in seen if o.outcome == "ok" and (fails is None or o.batch < fails)), default=0)
    return Bracket(fits, fails)


def settle(
    observations: Sequence[Observation], known: Evidence, goal: Goal, start: int | None
) -> tuple[Bracket, Certificate] | Scout | Try:
    """Max with its certificate, or what to do to come nearer to it."""
    seen = known.seen
    bracket = bracket_of(seen)
    if certificate := bracket.certificate(goal):
        return bracket, certificate
    fitted = max((o.batch for o in seen if o.outcome == "ok"), default=0)
    if len({o.batch for o in seen if o.outcome == "oom" and o.batch <= fitted}) >= CONTRADICTIONS:
        return bracket, "contradicted"
    if scout := _scout(observations, bracket, goal, start):
        return scout
    batch, why = _next_batch(known, bracket, goal)
    return Try(batch=batch, full=known.full_only, why=why)


def _scout(observations: Sequence[Observation], bracket: Bracket, goal: Goal, start: int | None) -> Scout | None:
    """A walk by doubling, unless there was one, three peaks are known, or trying everything costs no more.

    Another cell's answer adds itself to the walk: when the cells are alike, one peak comes from near the ceiling.
    """
    top = _top(bracket, goal)
    known = {o.batch for o in observations if o.peak is not None}
    if top - bracket.fits <= 3 * goal.granularity or len(known) >= 3 or not all(o.fresh for o in observations):
        return None
    doublings = [goal.granularity << i for i in range((top // goal.granularity).bit_length())]
    extra = [goal.down(start)] if start is not None and goal.granularity <= goal.down(start) <= top else []
    return Scout(batches=tuple(sorted({*doublings, *extra})))


def _next_batch(known: Evidence, bracket: Bracket, goal: Goal) -> tuple[int, str]:
    """The candidate strictly inside the bracket to try, and why that one."""
    fits, fails = bracket
    hint = _hinted(known.hints, bracket)
    wall = hint.fails
    curve = _curve(known)
    if _crawls(known.seen, bracket, goal):
        batch = 2 * fits if wall is None else _middle(fits, wall, goal)
        why = f"memory does not foretell what fits here: searching between {fits} and {wall or goal.cap}"
    elif curve is None or (wall is not None and curve.at(wall) < NEAR):
        batch = goal.cap if wall is None else _middle(hint.fits, wall, goal)
        why = f"the middle between {hint.fits} and {wall}" if wall else "the largest batch allowed"
    else:
        batch = _aim(curve, known.seen, bracket, hint, goal)
        reach = goal.down(min(max(curve.reaches(1.0), 0), goal.cap))
        failed = fails is not None and reach >= fails
        why = f"memory points to {reach} as the largest batch" + (f", but {fails} ran out" if failed else "")
    return min(max(batch, fits + goal.granularity), _top(bracket, goal)), why


def _crawls(seen: Sequence[Observation], bracket: Bracket, goal: Goal) -> bool:
    """Many attempts lie close together at an end of the bracket, or twice as many anywhere near it."""
    fits, fails = bracket
    close = 2 * PATIENCE * goal.width(fits)
    crowd = sum(abs(o.batch - end) <= close for o in seen for end in bracket if end)
    near = sum(o.batch >= fits / 4 and (fails is None or o.batch <= 2 * fails) for o in seen)
    return crowd >= PATIENCE or near >= 2 * PATIENCE


def _curve(known: Evidence) -> memory.Curve | None:
    """Fitted on all peaks; on evidence alone when the scout's lead away from it, as after a leak.

    A long process holds a little more or less than a fresh one at any batch: evidence says where the curve lies.
    """
    fresh, hints = (
        [memory.Point(o.batch, o.peak) for o in group if o.outcome == "ok" and o.peak]
        for group in (known.seen, known.hints)
    )
    curve = memory.fit([*fresh, *hints])
    if curve is None or not fresh:
        return curve
    if any(abs(curve.at(batch) - share) > 1 - NEAR for batch, share in fresh):
        return memory.fit(fresh)
    return curve._replace(static=curve.static + fmean(share - curve.at(batch) for batch, share in fresh))


def _aim(curve: memory.Curve, seen: Sequence[Observation], bracket: Bracket, hint: Bracket, goal: Goal) -> int:
    """The end of a bracket of the wanted width around the batch where ``curve`` reaches capacity.

    The lower end goes first: when it fits, its peak, so near the ceiling, tells the fit more than any other. Where the
    curve promises more than what has failed, each such failure doubles the step back, up to half of the bracket.
    """
    fits, fails = bracket
    reach, top = curve.reaches(1.0), _top(hint, goal)
    expected = goal.down(min(max(reach, hint.fits), top))
    width = goal.width(expected)
    if fails is not None and reach >= fails:
        surprises = sum(o.outcome == "oom" and o.batch <= reach for o in seen)
        return max(fails - (width << (surprises - 1)), _middle(fits, fails, goal))
    if fits and expected < fits + goal.width(fits):
        return fits + goal.width(fits)
    if fails is not None and expected >= fails - width:
        return fails - width
    return expected - goal.down((width - goal.granularity) / 2)


def _hinted(hints: Sequence[Observation], bracket: Bracket) -> Bracket:
    """The bracket as the scout saw it; of its fits and failures, those are dropped of which evidence refutes one."""
    fits, fails = bracket
    ok, oom = ([o.batch for o in hints if o.outcome == outcome] for outcome in ("ok", "oom"))
    if fails is None or max(ok, default=0) < fails:
        fits = max((fits, *ok))
    if min(oom, default=0) > bracket.fits:
        fails = min((batch for batch in (*oom, fails) if batch is not None and batch > fits), default=None)
    return Bracket(fits, fails)


def _top(bracket: Bracket, goal: Goal) -> int:
    """The largest candidate below what fails."""
    return goal.cap if bracket.fails is None else min(goal.cap, goal.down(bracket.fails - 1))


def _middle(fits: int, fails: int, goal: Goal) -> int:
    return goal.down((fits + fails) / 2)
