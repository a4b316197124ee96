"""Max: narrows the bracket between the largest batch that fits and the smallest that does not, in few attempts."""

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from bench.records.verdict import Certificate, Goal
from bench.search import memory_curve, prior
from bench.search.data import Evidence, Observation, Scout, Try
from bench.search.memory_curve import NEAR
from bench.search.prior import Prior

WALK_TO = 0.93
"""Share of capacity up to which a plan adds a batch to the walk, which ends before it may run out of memory."""
ENOUGH_NEAR_CEILING = 5
"""Attempts near the ceiling after which the curve is no longer trusted."""
CONTRADICTIONS = 3
"""Batches that failed at or below a batch that had fitted, after which the bracket cannot be certified."""


class Bracket(NamedTuple):
    """The bracket by the evidence. Fits above a failure are ignored: a batch that failed once may fail again."""

    fits: int
    """0: no batch is known to fit."""
    fails: int | None

    def certificate(self, goal: Goal) -> Certificate | None:
        if self.fails == goal.granularity:
            return "nothing_fits"
        if self.fits == goal.cap:
            return "cap_fits"
        if self.fails is None or not self.fits:
            return None
        if self.fails == goal.up(self.fits):
            return "next_fails"
        return "tolerance" if self.fails - self.fits <= goal.width(self.fits) else None


def bracket_of(seen: Sequence[Observation]) -> Bracket:
    """The bracket by the observations ``seen``."""
    fails = min((o.batch for o in seen if o.outcome == "oom"), default=None)
    fits = max((o.batch for o in seen if o.outcome == "ok" and (fails is None or o.batch < fails)), default=0)
    return Bracket(fits, fails)


def settle(
    observations: Sequence[Observation],
    evidence: Evidence,
    goal: Goal,
    start: int | None,
    expected: Prior | None = None,
    *,
    scouts: bool,
) -> tuple[Bracket, Certificate] | Scout | Try:
    """The bracket of max with its certificate, or the next step towards it."""
    seen = evidence.seen
    bracket = bracket_of(seen)
    fitted = max((o.batch for o in seen if o.outcome == "ok"), default=0)
    if certificate := bracket.certificate(goal):
        return bracket, "contradicted" if certificate == "nothing_fits" and fitted else certificate
    if len({o.batch for o in seen if o.outcome == "oom" and o.batch <= fitted}) >= CONTRADICTIONS:
        return bracket, "contradicted"
    plan = prior.trusted(expected, evidence, goal)
    if plan is None and scouts and (scout := _scout(observations, bracket, goal, start, expected)):
        return scout
    batch, why = _next_batch(evidence, bracket, goal, plan)
    return Try(batch=batch, full=evidence.full_only, why=why)


def _scout(
    observations: Sequence[Observation], bracket: Bracket, goal: Goal, start: int | None, expected: Prior | None
) -> Scout | None:
    """A walk by doubling, unless there already was one, three peaks are known, or trying every batch costs no more.
    Peaks at the batches of a plan that proved wrong may be far from the ceiling, so they do not replace a walk.

    Another cell's max, or that of a plan, is added to the walk: if it is similar, this gives a peak near the ceiling.
    """
    if expected is not None:
        start = int(min(max(expected.reaches(WALK_TO), 0), goal.cap))
    top = _top(bracket, goal)
    known = expected is None and len({o.batch for o in observations if o.peak is not None}) >= 3
    if known or top - bracket.fits <= 3 * goal.granularity or not all(o.fresh for o in observations):
        return None
    doublings = {goal.down(goal.granularity << i) for i in range((top // goal.granularity).bit_length())}
    extra = [goal.down(start)] if start is not None and goal.granularity <= goal.down(start) <= top else []
    return Scout(batches=tuple(sorted({*doublings, *extra})))


def _next_batch(evidence: Evidence, bracket: Bracket, goal: Goal, plan: Prior | None) -> tuple[int, str]:
    """The candidate to try next, strictly inside the bracket, and the reason for it.

    Args:
        plan: what is expected of memory; None: nothing, or evidence contradicts it.
    """
    fits, fails = bracket
    hint = _hinted(evidence.hints, bracket)
    wall = hint.fails
    curve = plan or _curve(evidence)
    if _crawls(evidence.seen, bracket, goal):
        batch = 2 * fits if wall is None else _middle(fits, wall, goal)
        why = f"memory is a poor predictor here: searching directly between {fits} and {wall or goal.cap}"
    elif curve is None or (plan is None and wall is not None and curve.at(wall) < NEAR):
        batch = goal.cap if wall is None else _middle(hint.fits, wall, goal)
        why = f"the middle between {hint.fits} and {wall}" if wall else "the largest batch allowed"
    else:
        batch = _aim(curve, evidence.seen, bracket, hint, goal)
        reach = goal.down(min(max(curve.reaches(1.0), 0), goal.cap))
        failed = fails is not None and reach >= fails
        why = f"limit about {reach}"
        why += f", but {fails} ran out of memory" if failed else ": trying it, then the next one"
    return min(max(goal.down(batch), goal.up(fits)), _top(bracket, goal)), why


def _crawls(seen: Sequence[Observation], bracket: Bracket, goal: Goal) -> bool:
    """Whether many attempts are close to an end of the bracket, or twice as many are anywhere near it."""
    fits, fails = bracket
    close = 2 * ENOUGH_NEAR_CEILING * goal.width(fits)
    crowd = sum(any(abs(o.batch - end) <= close for end in bracket if end) for o in seen)
    near = sum(o.batch >= fits / 4 and (fails is None or o.batch <= 2 * fails) for o in seen)
    return crowd >= ENOUGH_NEAR_CEILING or near >= 2 * ENOUGH_NEAR_CEILING


def _curve(evidence: Evidence) -> memory_curve.Curve | None:
    """The memory curve fitted to all peaks, or to evidence alone if the scout's peaks contradict it, as after a leak.

    A long process holds a little more or less memory than a fresh one at every batch, so the curve is shifted to match
    the evidence.
    """
    fresh, hints = (
        [memory_curve.Point(o.batch, o.peak) for o in group if o.outcome == "ok" and o.peak]
        for group in (evidence.seen, evidence.hints)
    )
    curve = memory_curve.fit([*fresh, *hints])
    if curve is None or not fresh:
        return curve
    if any(abs(curve.at(batch) - share) > 1 - NEAR for batch, share in fresh):
        return memory_curve.fit(fresh)
    return curve._replace(static=curve.static + fmean(share - curve.at(batch) for batch, share in fresh))


def _aim(
    curve: memory_curve.Curve | Prior, seen: Sequence[Observation], bracket: Bracket, hint: Bracket, goal: Goal
) -> int:
    """One end of a bracket of the required width around the batch at which ``curve`` reaches capacity.

    The lower end comes first: if it fits, its peak is near the ceiling and improves the curve most. Where the curve
    predicts a fit but the batch has failed, each such failure doubles the step back, up to the middle of the bracket.
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
    return expected - goal.down((width - (goal.up(expected) - expected)) / 2)


def _hinted(hints: Sequence[Observation], bracket: Bracket) -> Bracket:
    """The bracket by the scout's hints. Its fits, or its failures, are ignored if evidence contradicts one of them."""
    fits, fails = bracket
    ok, oom = ([o.batch for o in hints if o.outcome == outcome] for outcome in ("ok", "oom"))
    if fails is None or max(ok, default=0) < fails:
        fits = max((fits, *ok))
    if min(oom, default=0) > bracket.fits:
        fails = min((batch for batch in (*oom, fails) if batch is not None and batch > fits), default=None)
    return Bracket(fits, fails)


def _top(bracket: Bracket, goal: Goal) -> int:
    """The largest candidate below the smallest failure."""
    return goal.cap if bracket.fails is None else min(goal.cap, goal.down(bracket.fails - 1))


def _middle(fits: int, fails: int, goal: Goal) -> int:
    return goal.down((fits + fails) / 2)
