"""Input and output of the search: observations, evidence and steps. Batches are per rank."""

from collections.abc import Sequence
from statistics import fmean
from typing import Literal, NamedTuple

from bench.records.base import Frozen
from bench.records.rank_outcome import SampleSizes
from bench.records.verdict import Goal, Verdict
from bench.statistics.intervals import block_means, standard_error


class Observation(Frozen):
    """One observation of one batch. An attempt that neither fitted nor ran out of memory gives none."""

    batch: int
    outcome: Literal["ok", "oom"]
    fresh: bool
    """True: observed in fresh processes: evidence. False: observed by the scout after other batches: a hint."""
    peak_bytes: int | None
    """Of the worst rank: allocated memory and memory used outside torch. None if unknown."""
    capacity_bytes: int
    """Memory that this rank could use."""
    samples_per_s: float | None
    """Over all ranks."""
    error: float | None = None
    """Standard error of ``samples_per_s`` by the scatter of its own steps, as a share. None: unknown."""
    reserved_bytes: int | None = None
    """Blocks that the caching allocator held, and memory used outside torch."""
    alloc_retries: int = 0
    """Times that the caching allocator had to free its cached blocks and retry an allocation."""
    full: bool = False
    """Measured at the full step count."""
    sizes: SampleSizes | None = None
    """Of the samples, where bench looked at them."""
    steps: int | None = None
    """Measured, with these samples."""
    longest: int | None = None
    """Tokens of the longest of these samples."""
    grew_at: int | None = None
    """The last of these steps in which the peak still grew, late, where no worst batch came after them."""

    @property
    def peak(self) -> float | None:
        """Share of capacity in use; the memory curve is fitted to it."""
        return None if self.peak_bytes is None else self.peak_bytes / self.capacity_bytes

    @property
    def footprint(self) -> float | None:
        """Share of capacity held, including the allocator's cached blocks; compared with the headroom."""
        return self.peak if self.reserved_bytes is None else self.reserved_bytes / self.capacity_bytes


def rate_error(step_times_s: Sequence[float]) -> float | None:
    """Standard error of a rate by the scatter of its steps, as a share; None for fewer than three steps."""
    means = block_means(step_times_s)
    return standard_error(means) / fmean(step_times_s) if len(means) >= 3 else None


class Scout(Frozen):
    """Walk ``batches`` in one process, a step or two each, up to the first that runs out of memory."""

    kind: Literal["scout"] = "scout"
    batches: tuple[int, ...]


class Try(Frozen):
    """Make one attempt in fresh processes."""

    kind: Literal["try"] = "try"
    batch: int
    full: bool
    """Whether to run the full number of steps, or only a few."""
    why: str


Step = Scout | Try | Verdict


class Evidence(NamedTuple):
    """Observations, sorted into evidence and hints."""

    seen: Sequence[Observation]
    """Fresh observations of candidates. Only these support a verdict."""
    hints: Sequence[Observation]
    """All others. They only help to choose what to try."""
    full_only: bool
    """Whether a full attempt ran out of memory at a batch where a short one had fitted. Then a few steps do not prove
    that a batch fits: short fits become hints, short failures stay evidence."""


def evidence(observations: Sequence[Observation], goal: Goal) -> Evidence:
    """Sort ``observations``."""
    fresh = [o for o in observations if o.fresh and goal.tries(o.batch)]
    short_fit = max((o.batch for o in fresh if o.outcome == "ok" and not o.full), default=0)
    full_only = any(o.batch <= short_fit for o in fresh if o.outcome == "oom" and o.full)
    seen = [o for o in fresh if o.outcome == "oom" or o.full] if full_only else fresh
    chosen = set(map(id, seen))
    return Evidence(seen, [o for o in observations if id(o) not in chosen], full_only)
