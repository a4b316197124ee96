"""What a plan expects of the memory of a cell, before any of it is measured: a hint, never evidence."""

from typing import NamedTuple

from bench.records.verdict import Goal
from bench.search.data import Evidence
from bench.search.memory_curve import NEAR

COARSE = 0.01
"""Share of capacity of one candidate from which a plan may name max itself."""
MOST_OFF = 0.2
"""Share of capacity by which a plan may differ from a peak."""
TRIES = 4
"""Attempts that a plan may choose."""


class Line(NamedTuple):
    """Share of capacity at batch 0, and for each sample."""

    static: float
    slope: float


class Prior(NamedTuple):
    """Share of capacity over the batch: the highest of ``lines``."""

    lines: tuple[Line, ...]

    def at(self, batch: float) -> float:
        return max(line.static + line.slope * batch for line in self.lines)

    def reaches(self, share: float) -> float:
        """The batch at which the plan reaches ``share``; negative if it begins above."""
        return min((share - line.static) / max(line.slope, 1e-12) for line in self.lines)

    def raised(self, by: float) -> "Prior":
        return Prior(tuple(Line(line.static + by, line.slope) for line in self.lines))


def trusted(prior: Prior | None, evidence: Evidence, goal: Goal) -> Prior | None:
    """``prior`` as evidence corrects it: moved to the largest peak. None where there is none, or evidence contradicts
    it, or a walk has shown memory itself, or candidates are so fine that a walk shows more than a plan.

    Without a peak, one failure does not contradict a plan: it may be off by one candidate.
    """
    if prior is None or evidence.hints or len(evidence.seen) >= TRIES:
        return None
    reach = max(goal.granularity, goal.down(min(max(prior.reaches(1.0), 0), goal.cap)))
    if prior.at(reach) - prior.at(reach - goal.width(reach)) < COARSE:
        return None
    peaks = [(o.batch, o.peak) for o in evidence.seen if o.outcome == "ok" and o.peak]
    failed = [o.batch for o in evidence.seen if o.outcome == "oom"]
    if not peaks:
        off_by_one = len(evidence.seen) == len(failed) == 1 and prior.at(failed[0] + goal.width(failed[0])) >= 1.0
        return prior if off_by_one or not evidence.seen else None
    batch, peak = max(peaks)
    off = peak - prior.at(batch)
    moved = prior.raised(off)
    agrees = abs(off) <= MOST_OFF and all(abs(moved.at(batch) - share) <= 1 - NEAR for batch, share in peaks)
    return moved if agrees and all(moved.at(batch) >= NEAR for batch in failed) else None
