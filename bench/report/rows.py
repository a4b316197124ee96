"""The rows of a report: frozen data that `summary` computes and the other modules show."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from pydantic import JsonValue

from bench.records.base import Device
from bench.records.cell import Cell
from bench.records.conditions import Conditions
from bench.records.figures import CAPACITY, CAPACITY_SHARE, PEAK_ALLOCATED, Figure, Value
from bench.records.machine import Machine
from bench.records.outcome import INVALID, KINDS, THRASHING, Fault, KindTraits, OutcomeKind, Result
from bench.records.phases import PHASE_NAMES, REST, SHOWN_PHASES
from bench.records.plan import COST_OPTIONS
from bench.records.rank_outcome import RankOk
from bench.report.critical_rank import CriticalRank
from bench.statistics.intervals import Interval
from bench.statistics.launches import HalfWidth, Launch, LaunchVariation, mean_half_width

P95_NEEDS = 20
"""Fewest samples for a 95th percentile. Of three, the formula would give the median."""


@dataclass(frozen=True, kw_only=True)
class Times:
    """Statistics of one rank's samples."""

    mean_s: float
    samples_s: Sequence[float] = ()
    """Empty for imported figures."""

    @property
    def median_s(self) -> float | None:
        return statistics.median(self.samples_s) if self.samples_s else None

    @property
    def p95_s(self) -> float | None:
        """``sorted[int(0.95 * (n - 1))]``: always a measured sample. None for fewer than `P95_NEEDS` samples."""
        n = len(self.samples_s)
        return sorted(self.samples_s)[int(0.95 * (n - 1))] if n >= P95_NEEDS else None


def times(samples_s: Sequence[float]) -> Times:
    """Statistics of raw samples."""
    return Times(mean_s=statistics.fmean(samples_s), samples_s=samples_s)


@dataclass(frozen=True, kw_only=True)
class Phases:
    """The phase window of one rank; of a measured attempt, of that with the longest `total`."""

    rank: int | None
    """None where the source does not say which."""
    parts: dict[str, Times]
    """In the order of SHOWN_PHASES; of imported figures, those that the source gives."""
    total: Times | None
    """None where the source does not give it."""

    def of(self, name: str) -> Times | None:
        """A phase, or the ``total``."""
        return self.total if name == "total" else self.parts.get(name)

    @property
    def complete(self) -> bool:
        """Whether every phase is known, and the total."""
        return self.total is not None and (REST in self.parts or len(self.parts) == len(PHASE_NAMES))

    @property
    def unaccounted_share(self) -> float | None:
        """Share of `total` that no phase accounts for, by means; None unless all are known."""
        if not self.complete or self.total is None:
            return None
        return 1 - sum(part.mean_s for part in self.parts.values()) / self.total.mean_s

    def share(self, name: str) -> float | None:
        """Share of `total` that a phase takes, by means; None where one of the two is unknown."""
        if name not in self.parts or self.total is None:
            return None
        return self.parts[name].mean_s / self.total.mean_s


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One rank of a measured attempt."""

    raw: RankOk
    step: Times
    """Throughput window; of several launches, of all of them."""

    @property
    def name(self) -> str:
        return f"rank {self.raw.rank} ({self.raw.node})" if self.raw.node else f"rank {self.raw.rank}"

    @cached_property
    def phases(self) -> Phases | None:
        """Of its phase window; None without one."""
        samples = self.raw.phase_times_s
        if not samples.get("total"):
            return None
        return Phases(
            rank=self.raw.rank,
            parts={name: times(samples[name]) for name in SHOWN_PHASES if name in samples},
            total=times(samples["total"]),
        )


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The figures of one attempt."""

    samples_per_s_global: float
    """batch_per_rank x ranks x micro-batches / step_time_s_rank_max."""
    step_time_s_per_rank: tuple[float, ...]
    """Each rank's mean step in the throughput window; may be empty for imported figures and those of a script."""
    figures: Mapping[str, Value | None]
    """`FIGURES` by name; None, or absent, where unknown."""
    phases: Phases | None
    """None without a phase window."""
    ranks: tuple[Rank, ...] = ()
    """Only of what bench's own runner measured."""
    source: str | None = None
    """Where imported figures come from; None for what bench measured."""
    launches: tuple[Launch, ...] = ()
    """What each launch says about the step; empty for imported figures."""
    variation: LaunchVariation | None = None
    """Between launches on its machine, if known."""

    @property
    def half_width(self) -> HalfWidth:
        """How far the throughput of another launch may be."""
        return mean_half_width(self.launches, self.variation)

    @cached_property
    def interval(self) -> Interval | None:
        """Where the throughput lies with 95 % confidence, by the variation between launches; None without launches."""
        return self.half_width.interval(self.samples_per_s_global) if self.launches else None

    def of(self, figure: Figure) -> Value | None:
        """One of `FIGURES`."""
        return self.figures.get(figure.name)

    @property
    def step_time_s_rank_max(self) -> float | None:
        """The slowest rank's mean step in the throughput window."""
        return max(self.step_time_s_per_rank, default=None)

    @property
    def straggler_spread(self) -> float | None:
        """By which share the slowest rank's mean step is longer than the fastest's."""
        times_s = self.step_time_s_per_rank
        return max(times_s) / min(times_s) - 1 if len(times_s) > 1 else None


@dataclass(frozen=True, kw_only=True)
class Sampled(Measured):
    """What bench's own runner measured, with what only raw samples show."""

    slowest: Rank
    """The rank with the longest mean step. Every step ends in a gather, so means differ little: see
    ``critical_rank``."""
    windows_s: tuple[float, float] | None
    """The mean step of the throughput window and that of the phase window; of several launches, the means over those
    that have both."""
    critical_rank: CriticalRank | None
    """Which rank the others wait for; None without a phase window, and for a single rank."""
    losses: tuple[float, ...]
    """Means over ranks, one a step, warm-up included; the first is the loss of the initial weights."""

    @property
    def instrumentation_share(self) -> float | None:
        """Share by which synchronizing at every phase boundary lengthens a step, by the slowest rank of each window."""
        return None if self.windows_s is None else self.windows_s[1] / self.windows_s[0] - 1


class RowId(NamedTuple):
    """What names a row within a summary."""

    cell: tuple[str, ...]
    """The cell's id; with the machine and the run where these tell two of it apart."""
    batch_per_rank: int
    short: bool
    repeat: int = 0
    """0 for the first such row; counts the others."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One cell at one batch: all its launches."""

    id: RowId
    """Unique within a summary: equal figures of two runs are two rows."""
    settings: dict[str, JsonValue]
    """Everything that may differ between cells, the matrix's axes first."""
    batch_per_rank: int
    batch_global: int
    global_batch: int | None = None
    """`batch_global` where the matrix states it, and the micro-batches follow from it."""
    world_size: int
    outcome: OutcomeKind
    reason: str | None
    """Why it was not measured, with the rank and phase where known."""
    fault: Fault | None
    """The kind of failure; None for any other outcome."""
    measured: Measured | None
    short: bool
    """A search's attempt of a few steps."""
    n_steps: int
    """Of the throughput window."""
    retried: str | None = None
    """Why the first of two tries failed."""
    conditions: Conditions | None = None
    """What else the machine did meanwhile. With several launches: see ``launches``."""
    device: Device
    accelerators: tuple[str, ...] = ()
    """Name of each GPU of the machine."""
    stale: tuple[str, ...] = ()
    """Source files that differ from the newest of its workload."""
    notes: Mapping[str, JsonValue] = field(default_factory=dict)
    """Of imported figures: what their source says beside them."""
    launch: int = 1
    """Its number, of the row of a single launch."""
    launches: tuple["Row", ...] = ()
    """A row for each of several launches, with its own samples; empty for a single one."""

    @property
    def micro_batches(self) -> int:
        """Of one optimizer step."""
        return max(1, round(self.batch_global / (self.batch_per_rank * self.world_size)))

    @property
    def each(self) -> tuple["Row", ...]:
        """The row of each launch."""
        return self.launches or (self,)

    @property
    def sampled(self) -> Sampled | None:
        """What bench's own runner measured; None for figures from elsewhere, too."""
        return self.measured if isinstance(self.measured, Sampled) else None

    @property
    def ranks(self) -> tuple[Rank, ...]:
        return self.measured.ranks if self.measured else ()

    @property
    def phases(self) -> Phases | None:
        return self.measured.phases if self.measured else None

    @property
    def source(self) -> str | None:
        """Where imported figures come from."""
        return self.measured.source if self.measured else None

    @property
    def failures(self) -> tuple["Row", ...]:
        """The launches of a measured row that measured nothing."""
        return tuple(launch for launch in self.launches if self.measured and not launch.measured)

    @property
    def rate(self) -> float:
        """Global samples per second; 0 for what was not measured."""
        return self.measured.samples_per_s_global if self.measured else 0.0

    @property
    def held(self) -> float | None:
        """Share of capacity held at the peak; None where that is unknown."""
        return self.measured.of(CAPACITY_SHARE) if self.measured else None

    @property
    def held_at_least(self) -> float | None:
        """`held`; where only the allocated peak is known, its share of capacity, which is smaller."""
        if self.held is not None or self.measured is None:
            return self.held
        allocated, capacity = self.measured.of(PEAK_ALLOCATED), self.measured.of(CAPACITY)
        return allocated / capacity if allocated and capacity else None


@dataclass(frozen=True, kw_only=True)
class CellRows:
    """The rows of one cell, smallest batch first."""

    cell: Cell
    controlled: Mapping[str, JsonValue]
    """What must agree before this cell is compared with another one: see `controlled`."""
    rows: tuple[Row, ...]
    launched: tuple[Result, ...]
    """All results that bench launched, also short ones without a row."""
    thrashing: frozenset[int]
    """Batches that fit only because the allocator frees its blocks and asks for them again."""
    invalid: frozenset[RowId] = frozenset()
    """Rows with a doubt that spoils them: see `doubts`."""

    def thrashes(self, row: Row) -> bool:
        return row.batch_per_rank in self.thrashing

    def is_sound(self, row: Row) -> bool:
        return row.id not in self.invalid and not self.thrashes(row)

    def traits(self, row: Row) -> KindTraits:
        """How reports show the outcome of ``row``."""
        if row.id in self.invalid:
            return INVALID
        return THRASHING if self.thrashes(row) else KINDS[row.outcome]

    @property
    def sound(self) -> tuple[Row, ...]:
        """The rows that were measured, are not invalid and do not thrash."""
        return tuple(row for row in self.rows if row.measured and self.is_sound(row))

    @property
    def full(self) -> tuple[Row, ...]:
        """The sound rows that were measured in full. A search's attempts of a few steps decide what fits, not what is
        faster."""
        return tuple(row for row in self.sound if not row.short)

    @property
    def best(self) -> Row | None:
        """The one of `full` with the highest throughput; None when there is none."""
        return max(self.full, key=lambda row: row.rate, default=None)


@dataclass(frozen=True, kw_only=True, eq=False)
class Summary:
    """Everything that a report of these results can show. Compared by identity, to cache what is derived from it."""

    cells: tuple[CellRows, ...]
    """In order of first appearance."""
    columns: tuple[str, ...]
    """Settings that differ between cells."""
    shared: dict[str, JsonValue]
    """Settings that are the same for all."""
    machines: tuple[Machine, ...]
    """Each different one; more than one is a reason for doubt."""
    isolations: tuple[str, ...]
    n_attempts: int
    """Including short ones that have no row because their batch was measured in full, too."""
    started_at: str | None
    """Of the first attempt."""
    wall_s: float
    """All attempts together."""
    cost_options: frozenset[str] = frozenset(COST_OPTIONS)
    """Fields of the workload that change what a step costs, and not its losses."""
    variations: tuple[LaunchVariation, ...] = ()
    """What is known of the variation between launches, of each kind of machine."""

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple(row for cell in self.cells for row in cell.rows)
