"""The figures of an attempt. Each is declared once: rows, launches, csv and json, claims, tables and imports read its
entry."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from bench.records.base import Device
from bench.records.phases import PHASE_NAMES
from bench.records.rank_outcome import RankOk
from bench.units import Kind

Value = int | float


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One quantity, in base units."""

    name: str
    """Its column in csv and json, and the metric of claims: with unit and scope."""
    short: str
    """In sentences, and in imported files."""
    kind: Kind | None
    """None for a plain count, of which there are no claims."""
    of_rank: Callable[[RankOk], Value | None] | None = None
    """Its value on one rank. None for times and rates, which follow from the samples of all steps."""
    over: Callable[[Iterable[Value]], Value] = max
    """Of several ranks or launches."""
    header: str = ""
    """Of its column in the raw matrix, the ranks and `bench show`; empty without one."""
    devices: tuple[Device, ...] = ("cpu", "cuda")
    """Whose tables have this column."""
    exported: bool = True
    """Whether csv and json have it."""
    stated: bool = False
    """Whether a script, or another source, may state it."""

    def combined(self, values: Sequence[Value | None]) -> Value | None:
        """Over ranks or launches: unknown if that of one is."""
        known = [value for value in values if value is not None]
        return self.over(known) if known and len(known) == len(values) else None


def _held(rank: RankOk) -> float | None:
    held = rank.memory.held_bytes
    return None if held is None else held / rank.memory.capacity_bytes


PEAK_ALLOCATED = Figure(
    name="peak_allocated_bytes_rank_max",
    short="peak_allocated_bytes",
    kind="bytes",
    of_rank=lambda rank: rank.memory.peak_allocated_bytes,
    header="peak allocated GiB",
    stated=True,
)
PEAK_RESERVED = Figure(
    name="peak_reserved_bytes_rank_max",
    short="peak_reserved_bytes",
    kind="bytes",
    of_rank=lambda rank: rank.memory.peak_reserved_bytes,
    header="peak reserved GiB",
    devices=("cuda",),
    stated=True,
)
CAPACITY_SHARE = Figure(
    name="capacity_share_rank_max", short="capacity_share", kind="ratio", of_rank=_held, stated=True
)
"""Memory held at the peak, as a share of what the rank could have used: see `Memory.held_bytes`."""
CAPACITY = Figure(
    name="capacity_bytes_rank_min",
    short="capacity_bytes",
    kind="bytes",
    of_rank=lambda rank: rank.memory.capacity_bytes,
    over=min,
    exported=False,
    stated=True,
)
"""What a rank could have used."""
ALLOC_RETRIES = Figure(
    name="alloc_retries",
    short="alloc_retries",
    kind=None,
    of_rank=lambda rank: rank.memory.alloc_retries,
    over=sum,
)
"""How often the allocators of all ranks had to free their blocks and ask again."""

FIGURES: tuple[Figure, ...] = (
    PEAK_ALLOCATED,
    PEAK_RESERVED,
    Figure(
        name="peak_rss_bytes_rank_max",
        short="peak_rss_bytes",
        kind="bytes",
        of_rank=lambda rank: rank.memory.peak_rss_bytes,
        header="peak RSS GiB",
        devices=("cpu",),
    ),
    CAPACITY_SHARE,
    CAPACITY,
    ALLOC_RETRIES,
)
"""Those of a rank, in the order of csv. To add one, have `RankOk` hold its measurement, and add an entry."""
COLUMNS = tuple(figure for figure in FIGURES if figure.header)
STATED = {figure.name: figure for figure in FIGURES if figure.stated}

THROUGHPUT = Figure(name="samples_per_s_global", short="samples_per_s", kind="samples/s", stated=True)
STEP_TIME = Figure(name="step_time_s_rank_max", short="step_time_s", kind="s", stated=True)
TIMED = (
    STEP_TIME,
    THROUGHPUT,
    *(Figure(name=f"{name}_s_mean", short=name, kind="s", stated=True) for name in (*PHASE_NAMES, "total")),
)
"""Those of the steps: of the throughput window, and means of the phase window."""
METRICS = {figure.name: figure for figure in (*FIGURES, *TIMED) if figure.kind}
"""All metrics of claims."""
