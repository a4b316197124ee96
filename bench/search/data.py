"""What the search is told and what it answers. Batches are per rank."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from bench.records.base import Frozen
from bench.records.verdict import Goal, Verdict


class Observation(Frozen):
    """One batch seen once. An attempt that neither fitted nor ran out of memory observed nothing."""

    batch: int
    outcome: Literal["ok", "oom"]
    fresh: bool
    """Seen in processes of its own: evidence. False: seen by the scout, after other batches: a hint."""
    peak_bytes: int | None
    """Of the worst rank: allocated and what is used beside torch. None when unknown."""
    capacity_bytes: int
    """What that rank could use."""
    samples_per_s: float | None
    """Global."""
    reserved_bytes: int | None = None
    """Blocks that the caching allocator held, and what is used beside torch."""
    alloc_retries: int = 0
    """Times that the caching allocator had to give its blocks back and ask anew."""
    full: bool = False
    """Measured at the full step count."""

    @property
    def peak(self) -> float | None:
        """Share of capacity in use: what memory is fitted on."""
        return None if self.peak_bytes is None else self.peak_bytes / self.capacity_bytes

    @property
    def footprint(self) -> float | None:
        """Share of capacity held, the allocator's spare blocks included: what headroom is judged by."""
        return self.peak if self.reserved_bytes is None else self.reserved_bytes / self.capacity_bytes


class Scout(Frozen):
    """Walk ``batches`` in one process, a step or two each, up to the first that runs out of memory."""

    kind: Literal["scout"] = "scout"
    batches: tuple[int, ...]


class Try(Frozen):
    """Make one attempt in processes of its own."""

    kind: Literal["try"] = "try"
    batch: int
    full: bool
    """At the full step count; otherwise a few steps are enough."""
    why: str


Step = Scout | Try | Verdict


class Evidence(NamedTuple):
    """Observations sorted by what may rest on them."""

    seen: Sequence[Observation]
    """Fresh observations of candidates: what a verdict rests on."""
    hints: Sequence[Observation]
    """All others: they may choose what to try."""
    full_only: bool
    """A full attempt has run out where a short one had fitted. A few steps prove nothing here: short fits are hints,
    short failures stay evidence."""


def evidence(observations: Sequence[Observation], goal: Goal) -> Evidence:
    """Sort ``observations``."""
    fresh = [o for o in observations if o.fresh and goal.tries(o.batch)]
    short_fit = max((o.batch for o in fresh if o.outcome == "ok" and not o.full), default=0)
    full_only = any(o.batch <= short_fit for o in fresh if o.outcome == "oom" and o.full)
    seen = [o for o in fresh if o.outcome == "oom" or o.full] if full_only else fresh
    chosen = set(map(id, seen))
    return Evidence(seen, [o for o in observations if id(o) not in chosen], full_only)
