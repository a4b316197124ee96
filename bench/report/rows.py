"""The rows of a report: frozen data that `summary` computes and the other modules show."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import JsonValue

from bench.records.cell import Cell, Regime
from bench.records.conditions import Conditions
from bench.records.machine import Machine
from bench.records.outcome import Fault
from bench.records.phases import PHASE_NAMES
from bench.records.rank_outcome import Memory

P95_NEEDS = 20
"""Samples. Of fewer, one in twenty is none: the formula would give the median of three."""


@dataclass(frozen=True, kw_only=True)
class Times:
    """Statistics of one rank's samples."""

    mean_s: float
    samples_s: Sequence[float] = ()
    """None of what was imported."""

    @property
    def median_s(self) -> float | None:
        return statistics.median(self.samples_s) if self.samples_s else None

    @property
    def p95_s(self) -> float | None:
        """``sorted[int(0.95 * (n - 1))]``: always a sample that was measured. None of fewer than `P95_NEEDS`."""
        n = len(self.samples_s)
        return sorted(self.samples_s)[int(0.95 * (n - 1))] if n >= P95_NEEDS else None


@dataclass(frozen=True, kw_only=True)
class Phases:
    """The phase window of the rank whose `total` took longest there."""

    rank: int | None
    """None where nobody said which."""
    parts: dict[str, Times]
    """In the order of PHASE_NAMES; of imported figures those that were given."""
    total: Times | None
    """None where nobody gave it."""
    backward_step: Times | None
    """bwd + unscale_clip + optim_step + zero_grad_sched. Never shown beside its parts: shares would pass 100 %."""

    @property
    def complete(self) -> bool:
        """Whether every phase is known, and the total."""
        return self.total is not None and len(self.parts) == len(PHASE_NAMES)

    @property
    def unaccounted_share(self) -> float | None:
        """By how much of `total` the phases miss it, by means; None unless all are known."""
        if not self.complete or self.total is None:
            return None
        return 1 - sum(part.mean_s for part in self.parts.values()) / self.total.mean_s

    def share(self, name: str) -> float | None:
        """The part of `total` that a phase takes, by means; None where one of the two is unknown."""
        if name not in self.parts or self.total is None:
            return None
        return self.parts[name].mean_s / self.total.mean_s


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One rank of a measured attempt."""

    rank: int
    step: Times
    """Throughput window."""
    memory: Memory
    regime: Regime
    threads: int
    """CPU threads of its operators."""
    sharded_share: float
    """Of the model's parameters, those of which this rank holds only a part."""
    unaccounted_share: float | None
    """By how much of `total` its phases miss it; None without a phase window."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The figures of one attempt. ``_rank_max``: of the worst rank, None if any is unknown."""

    samples_per_s_global: float
    """batch_per_rank x ranks / step_time_s_rank_max."""
    step_time_s_per_rank: tuple[float, ...]
    """Each rank's mean step in the throughput window; may be empty for imported figures."""
    peak_allocated_bytes_rank_max: int | None
    peak_reserved_bytes_rank_max: int | None
    capacity_share_rank_max: float | None
    """Held at the peak, as a share of what the rank could have used: see `Memory.held_bytes`."""
    capacity_bytes_rank_min: float | None
    """What a rank could have used; the least of any."""
    phases: Phases | None
    """None when the phase window was left out."""
    source: str | None = None
    """Where imported figures come from; None for what bench measured."""

    @property
    def step_time_s_rank_max(self) -> float | None:
        """The slowest rank's mean step in the throughput window."""
        return max(self.step_time_s_per_rank, default=None)

    @property
    def total_s(self) -> float | None:
        """The mean step of the phase window."""
        return self.phases.total.mean_s if self.phases and self.phases.total else None

    @property
    def straggler_spread(self) -> float | None:
        """How much longer the slowest rank's mean step takes than the fastest's, as a share."""
        times_s = self.step_time_s_per_rank
        return max(times_s) / min(times_s) - 1 if len(times_s) > 1 else None


@dataclass(frozen=True, kw_only=True)
class Sampled(Measured):
    """What bench itself measured, with what only raw samples can tell."""

    ranks: tuple[Rank, ...]
    slowest: Rank
    """The rank with the longest mean step: it gates the throughput."""
    interval: tuple[float, float] | None
    """Where the throughput lies with 95 % confidence, from the slowest rank's samples; None for a few."""
    peak_rss_bytes_rank_max: int | None
    alloc_retries: int
    """Of all ranks: times that the allocator had to give its blocks back and ask anew."""
    losses: tuple[float, ...]
    """Means over ranks, of every step, warm-up included; the first is of the weights as they were built."""

    @property
    def finite(self) -> bool:
        """Whether every loss is a finite number."""
        return all(map(math.isfinite, self.losses))

    @property
    def instrumentation_share(self) -> float | None:
        """What synchronising at every phase boundary adds to a step, slowest rank against slowest rank."""
        return None if self.total_s is None else self.total_s / self.slowest.step.mean_s - 1


@dataclass(frozen=True, kw_only=True)
class Row:
    """One result."""

    settings: dict[str, JsonValue]
    """Everything that may differ between cells, the matrix's axes first."""
    batch_per_rank: int
    batch_global: int
    world_size: int
    outcome: Literal["ok", "reported", "oom", "hang", "failed", "skipped"]
    reason: str | None
    """Why it was not measured, with the rank and phase where known."""
    fault: Fault | None
    """Of what failed: what kind of failure."""
    measured: Measured | None
    short: bool
    """A probe's attempt of a few steps."""
    n_steps: int
    """Of the throughput window."""
    retried: str | None = None
    """Why the first of two tries failed."""
    conditions: Conditions | None = None
    """What the machine did beside it."""


@dataclass(frozen=True, kw_only=True)
class CellRows:
    """The rows of one cell, smallest batch first."""

    cell: Cell
    contract: Mapping[str, JsonValue]
    """What must agree with another cell for the two to be compared: see `contract`."""
    rows: tuple[Row, ...]
    best: Row | None
    """The sound row of highest throughput; None when nothing was measured."""
    thrashing: frozenset[int]
    """Batches that fit only because the allocator gives blocks back and asks anew."""

    @property
    def sound(self) -> tuple[Row, ...]:
        """The rows that were measured and do not thrash."""
        return tuple(row for row in self.rows if row.measured and row.batch_per_rank not in self.thrashing)


@dataclass(frozen=True, kw_only=True, eq=False)
class Summary:
    """All that a report of these results may say. Equal to itself alone, so that what follows from it can be kept."""

    cells: tuple[CellRows, ...]
    """In order of first appearance."""
    columns: tuple[str, ...]
    """Settings that differ between cells."""
    shared: dict[str, JsonValue]
    """Settings that are the same for all."""
    machines: tuple[Machine, ...]
    """Each distinct one: more than one is a reason for doubt."""
    isolations: tuple[str, ...]
    n_attempts: int
    """Short ones counted that a full one at the same batch keeps from having a row."""
    started_at: str | None
    """Of the first attempt."""
    wall_s: float
    """All attempts together."""

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple(row for cell in self.cells for row in cell.rows)
