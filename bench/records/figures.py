"""The figures of an attempt. Each is declared once: rows, launches, csv and json, claims, tables and imports read its
entry."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from bench.records.base import Device
from bench.records.phases import SHOWN_PHASES
from bench.records.rank_outcome import RankOk
from bench.units import Kind

Value = int | float


@dataclass(frozen=True)
class Figure:
    """One quantity, in base units."""

    short: str
    """Its name in sentences and imported files."""
    kind: Kind
    of_rank: Callable[[RankOk], Value | None] | None = None
    """Its value on one rank. None for times and rates, which follow from the samples of all steps."""
    scope: str = "rank_max"
    over: Callable[[Iterable[Value]], Value] = max
    """Of several ranks or launches."""
    header: str = ""
    """Of its column in the raw matrix, the ranks and `bench show`; empty without one."""
    devices: tuple[Device, ...] = ()
    """Whose raw matrix has this column; empty: that of every device."""
    rare: bool = False
    """Whether tables leave it out where no result has it."""
    exported: bool = True
    """Whether csv and json have it."""
    stated: bool = False
    """Whether a script, or another source, may state it."""

    @property
    def name(self) -> str:
        """Its column in csv and json, and the metric of claims."""
        return "_".join(filter(None, (self.short, self.scope)))

    def combined(self, values: Sequence[Value | None]) -> Value | None:
        """Over ranks or launches: unknown if that of one is."""
        known = [value for value in values if value is not None]
        return self.over(known) if known and len(known) == len(values) else None


def _held(rank: RankOk) -> float | None:
    held = rank.memory.held_bytes
    return None if held is None else held / rank.memory.capacity_bytes


PEAK_ALLOCATED = Figure(
    "peak_allocated_bytes",
    "bytes",
    lambda rank: rank.memory.peak_allocated_bytes,
    header="peak allocated GiB",
    stated=True,
)
PEAK_RESERVED = Figure(
    "peak_reserved_bytes",
    "bytes",
    lambda rank: rank.memory.peak_reserved_bytes,
    header="peak reserved GiB",
    devices=("cuda",),
    stated=True,
)
PEAK_RSS = Figure(
    "peak_rss_bytes", "bytes", lambda rank: rank.memory.peak_rss_bytes, header="peak RSS GiB", devices=("cpu",)
)
CAPACITY_SHARE = Figure("capacity_share", "ratio", _held, stated=True)
"""Memory held at the peak, as a share of what the rank could have used: see `Memory.held_bytes`."""
CAPACITY = Figure(
    "capacity_bytes",
    "bytes",
    lambda rank: rank.memory.capacity_bytes,
    scope="rank_min",
    over=min,
    exported=False,
    stated=True,
)
"""What a rank could have used."""
ALLOC_RETRIES = Figure("alloc_retries", "count", lambda rank: rank.memory.alloc_retries, scope="", over=sum)
"""How often the allocators of all ranks had to free their blocks and ask again."""
ENERGY = Figure(
    "energy_j_per_sample",
    "J/sample",
    lambda rank: None if rank.metered is None else rank.metered.per_sample("joules"),
    scope="",
    over=fmean,
    header="J/sample",
    rare=True,
)
"""Over ranks a mean: each trains as many samples."""


def _tokens_per_sample(rank: RankOk) -> float | None:
    if rank.tokens is not None:
        return sum(rank.tokens.trained) / rank.tokens.samples
    return rank.work.tokens_per_sample if rank.work else None


TOKENS = Figure("tokens_per_sample", "count", _tokens_per_sample, scope="", over=fmean, rare=True)
"""Without padding, as counted in batches, else as the workload states it."""
PADDING = Figure(
    "padding_share",
    "ratio",
    lambda rank: None if rank.tokens is None else rank.tokens.padding_share,
    scope="",
    over=fmean,
    header="padding",
    rare=True,
)
"""Of all places for tokens."""

FIGURES: tuple[Figure, ...] = (
    PEAK_ALLOCATED,
    PEAK_RESERVED,
    PEAK_RSS,
    CAPACITY_SHARE,
    CAPACITY,
    ALLOC_RETRIES,
    ENERGY,
    TOKENS,
    PADDING,
)
"""Those of a rank, in the order of csv. To add one, have `RankOk` hold its measurement, and add an entry."""
COLUMNS = tuple(figure for figure in FIGURES if figure.header)
STATED = {figure.name: figure for figure in FIGURES if figure.stated}

STEP_TIME = Figure("step_time_s", "s")
THROUGHPUT = Figure("samples_per_s", "samples/s", scope="global")
PHASE_MEANS = tuple(Figure(name, "s", scope="s_mean") for name in (*SHOWN_PHASES, "total"))
TIMED = (STEP_TIME, THROUGHPUT, *PHASE_MEANS)
"""Those of the steps: of the throughput window, and means of the phase window."""
METRICS = {figure.name: figure for figure in (*FIGURES, *TIMED)}
"""All metrics of claims."""
