"""The report's wording: tables as plain text, built once and marked up by `markdown` and `terminal`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import JsonValue

from bench.records.phases import PHASE_NAMES
from bench.records.rank_outcome import Memory
from bench.report.rows import P95_NEEDS, Measured, Phases, Row, Sampled, Summary
from bench.units import UNKNOWN, gib, memory_size, ms, percent, rate

REASON = "reason"
"""Header of the one column of prose."""
REASON_LIMIT = 200
"""A reason's length in a table; the whole one is in the result's file."""
MAX_DETAILED = 300
"""Rows of a table of details: nobody reads more, and the raw matrix has them all."""

Statistic = Literal["mean", "share", "median", "p95"]

DEEPSPEED_NOTE = (
    "Under DeepSpeed the engine steps inside backward, so optim_step and unscale_clip read near zero there and bwd"
    " holds them: compare total between backends."
)

P95_NOTE = f"p95 needs {P95_NEEDS} steps"


@dataclass(frozen=True, kw_only=True)
class Table:
    """Plain text in rows and columns."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[str]
    """Headers of the columns to align at the right."""
    bold: frozenset[tuple[int, str]] = frozenset()
    """Row number and header of the cells that stand out."""
    notes: tuple[str, ...] = ()


def matrix(summary: Summary) -> Table:
    """Every result, with the peak throughput of each cell in bold."""
    rows = summary.rows
    memory = _memory_columns(summary)
    numbers = ("samples/s", "step ms", *memory, "of capacity")
    # Without a reason to give, the column is left out.
    reason = (REASON,) if any(row.reason for row in rows) else ()
    best = {id(cell.best) for cell in summary.cells if cell.best}
    thrashing = {id(row) for cell in summary.cells for row in cell.rows if row.batch_per_rank in cell.thrashing}
    return Table(
        title="Raw matrix",
        headers=(*_place_headers(summary), "global batch", *numbers, "outcome", *reason),
        rows=tuple(
            (
                *_place(summary, row),
                str(row.batch_global),
                *_matrix_values(row.measured, memory),
                outcome(row, thrashing=id(row) in thrashing),
                *[one_line(row.reason or "", REASON_LIMIT) for _ in reason],
            )
            for row in rows
        ),
        numeric=frozenset({"batch per rank", "global batch", *numbers}),
        bold=frozenset((index, "samples/s") for index, row in enumerate(rows) if id(row) in best),
        notes=(
            "Bold: each cell's peak throughput. samples/s is global; step ms and memory are those of the worst rank.",
            "of capacity: share of what a rank may use; on a GPU reserved memory and what is used beside torch, on a"
            " CPU what the attempt allocated.",
        ),
    )


def outcome(row: Row, *, thrashing: bool) -> str:
    """A row's outcome in words."""
    word = "thrashing" if thrashing else "imported" if row.outcome == "reported" else row.outcome
    return word + (" (few steps)" if row.short else "")


def phases(summary: Summary, statistic: Statistic) -> Table:
    """One line per measured result: the ``mean``, ``median``, ``p95`` or ``share`` of every phase."""
    names = PHASE_NAMES if statistic == "share" else (*PHASE_NAMES, "total")
    detailed, left_out = _detailed(summary)
    rows, deepspeed = [], False
    for row in detailed:
        if row.measured and (found := row.measured.phases):
            rank = UNKNOWN if found.rank is None else str(found.rank)
            if set(values := _phase_values(found, statistic)) != {UNKNOWN}:
                rows.append((*_place(summary, row), rank, *values))
                deepspeed |= _under_deepspeed(row)
    title = "% of total" if statistic == "share" else f"{statistic} ms"
    return Table(
        title=f"Phases, {title}",
        headers=(*_place_headers(summary), "rank", *names),
        rows=tuple(rows),
        numeric=frozenset({"batch per rank", "rank", *names}),
        notes=(
            "rank: the slowest of the phase window, whose times these are.",
            *([f"{P95_NOTE}."] if statistic == "p95" else []),
            *([DEEPSPEED_NOTE] if deepspeed else []),
            *left_out,
        ),
    )


def steps(summary: Summary) -> Table:
    """Both timing windows side by side, and the loss."""
    headers = ("mean ms", "median ms", "p95 ms", "synchronised ms", "difference", "first loss", "last loss")
    detailed, left_out = _detailed(summary)
    return Table(
        title="Steps",
        headers=(*_place_headers(summary), *headers),
        rows=tuple(
            (*_place(summary, row), *_step_values(row.measured))
            for row in detailed
            if isinstance(row.measured, Sampled)
        ),
        numeric=frozenset({"batch per rank", *headers}),
        notes=(
            f"mean, median, p95: the slowest rank's, throughput window; {P95_NOTE}. synchronised: mean total of the"
            " phase window. difference: what synchronising, and noise, adds; it is in no throughput.",
            *left_out,
        ),
    )


def ranks(summary: Summary) -> Table:
    """Every rank's mean step and peak memory; no statistic is rank 0's alone."""
    columns = _memory_columns(summary)
    detailed, left_out = _detailed(summary)
    rows = []
    for row in detailed:
        if isinstance(row.measured, Sampled):
            times = ", ".join(ms(time) for time in row.measured.step_time_s_per_rank)
            peaks = [", ".join(gib(_peak(rank.memory, column)) for rank in row.measured.ranks) for column in columns]
            rows.append((*_place(summary, row), f"rank {row.measured.slowest.rank}", times, *peaks))
    return Table(
        title="Ranks",
        headers=(*_place_headers(summary), "slowest", "step ms", *columns),
        rows=tuple(rows),
        numeric=frozenset({"batch per rank"}),
        notes=("One value a rank, rank 0 first.", *left_out),
    )


def _detailed(summary: Summary) -> tuple[Sequence[Row], tuple[str, ...]]:
    """The rows of a table of details, and a note where these are not all that were measured."""
    measured = [row for row in summary.rows if row.measured]
    if len(measured) <= MAX_DETAILED:
        return measured, ()
    best = [cell.best for cell in summary.cells if cell.best]
    cells = f"the first {MAX_DETAILED} of {len(best)} cells" if len(best) > MAX_DETAILED else f"all {len(best)} cells"
    note = f"Of {len(measured)} measured rows those of highest throughput, of {cells}: `bench show` tells of every row."
    return best[:MAX_DETAILED], (note,)


def regimes(summary: Summary) -> Table:
    """What was observed to run, by backend. One line each, unless ranks or cells of a backend differ."""
    lines: dict[tuple[str, ...], None] = {}
    seen = {str(row.settings["backend"]): False for row in summary.rows}
    for row in summary.rows:
        for rank in row.measured.ranks if isinstance(row.measured, Sampled) else ():
            regime, backend = rank.regime, str(row.settings["backend"])
            dtypes = (regime.weights_dtype, regime.masters_dtype, regime.optimizer_dtype, regime.reduction_dtype)
            world = (str(regime.world_size), f"{regime.parameters:,}", percent(rank.sharded_share))
            named = (backend, regime.distributed_type, regime.sharding, *world)
            lines[(*named, *(dtype or "none" for dtype in dtypes))] = None
            seen[backend] = True
    unseen = [(backend, *[UNKNOWN] * 9) for backend, was_seen in seen.items() if not was_seen]
    counts = ("world size", "parameters", "sharded")
    return Table(
        title="Regime",
        headers=("backend", "type", "sharding", *counts, "weights", "masters", "optimizer", "reduction"),
        rows=(*lines, *unseen),
        numeric=frozenset(counts),
        notes=("Observed in the processes. sharded: parameters of which a rank holds only a part.",),
    )


def _under_deepspeed(row: Row) -> bool:
    if isinstance(row.measured, Sampled):
        return any(rank.regime.distributed_type == "DEEPSPEED" for rank in row.measured.ranks)
    return str(row.settings["backend"]).startswith("zero")


def row_name(summary: Summary, row: Row) -> str:
    """A row in words, e.g. ``ddp, num_cams 4, batch 8``."""
    return f"{cell_name(summary, row)}, batch {row.batch_per_rank}"


def cell_name(summary: Summary, row: Row) -> str:
    """A row's cell in words, by what tells it from the others."""
    parts = [
        text if column == "backend" else f"{caption(column)} {text}"
        for column, text in zip(summary.columns, _place(summary, row), strict=False)
    ]
    return ", ".join(parts) or str(row.settings["backend"])


def value_of(row: Row, name: str) -> str:
    """A row's setting in words; n/a where nobody said it."""
    return setting(name, row.settings[name]) if name in row.settings else UNKNOWN


def setting(name: str, value: JsonValue) -> str:
    """A setting's value in words."""
    match value:
        case bool():
            return "on" if value else "off"
        case None:
            return "none"
        case int() if name.endswith("_bytes"):
            return memory_size(value)
        case list() if name == "hardware":
            return one_line(" + ".join(dict.fromkeys(str(one) for one in value if one is not None)) or UNKNOWN)
    return one_line(str(value))


def one_line(text: str, limit: int | None = None) -> str:
    """``text`` without line breaks and control characters, cut at ``limit``."""
    shown = text if text.isprintable() else "".join(char if char.isprintable() else " " for char in text)
    line = " ".join(shown.split())
    return line if limit is None or len(line) <= limit else line[: limit - 1].rstrip() + "…"


def caption(name: str) -> str:
    """A setting's name, without its unit: `setting` writes that."""
    return one_line(name.removesuffix("_bytes"))


def _place_headers(summary: Summary) -> tuple[str, ...]:
    return (*(caption(column) for column in summary.columns), "batch per rank")


def _place(summary: Summary, row: Row) -> tuple[str, ...]:
    """The columns that say which row it is."""
    return (*(value_of(row, name) for name in summary.columns), str(row.batch_per_rank))


def _memory_columns(summary: Summary) -> tuple[str, ...]:
    devices = {machine.hardware.device for machine in summary.machines}
    cuda = ("peak reserved GiB",) if "cuda" in devices else ()
    cpu = ("peak RSS GiB",) if "cpu" in devices else ()
    return ("peak allocated GiB", *cuda, *cpu)


def _peak(memory: Memory, column: str) -> int | None:
    return {
        "peak allocated GiB": memory.peak_allocated_bytes,
        "peak reserved GiB": memory.peak_reserved_bytes,
        "peak RSS GiB": memory.peak_rss_bytes,
    }[column]


def _matrix_values(measured: Measured | None, memory: Sequence[str]) -> list[str]:
    if measured is None:
        return [""] * (3 + len(memory))
    peaks = {
        "peak allocated GiB": measured.peak_allocated_bytes_rank_max,
        "peak reserved GiB": measured.peak_reserved_bytes_rank_max,
        "peak RSS GiB": measured.peak_rss_bytes_rank_max if isinstance(measured, Sampled) else None,
    }
    return [
        rate(measured.samples_per_s_global),
        ms(measured.step_time_s_rank_max),
        *(gib(peaks[column]) for column in memory),
        percent(measured.capacity_share_rank_max),
    ]


def _step_values(measured: Sampled) -> list[str]:
    step, losses = measured.slowest.step, measured.losses
    return [
        *(ms(value) for value in (step.mean_s, step.median_s, step.p95_s)),
        ms(measured.total_s),
        percent(measured.instrumentation_share),
        *(f"{loss:#.4g}" for loss in (losses[0], losses[-1])),
    ]


def _phase_values(phases: Phases, statistic: Statistic) -> list[str]:
    times = [*(phases.parts.get(name) for name in PHASE_NAMES), phases.total]
    match statistic:
        case "mean":
            return [ms(time.mean_s if time else None) for time in times]
        case "median":
            return [ms(time.median_s if time else None) for time in times]
        case "p95":
            return [ms(time.p95_s if time else None) for time in times]
        case "share":
            return [percent(phases.share(name)).removesuffix(" %") for name in PHASE_NAMES]
