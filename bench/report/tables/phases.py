"""The parts of a step, in the phase window."""

from collections.abc import Callable
from functools import partial
from typing import Literal

from bench.records.phases import PHASE_NAMES
from bench.report.rows import P95_NEEDS, Phases, Row, Sampled, Summary, Times
from bench.report.tables.raw_matrix import detailed_rows, row_columns
from bench.report.tables.table import Column, Table, of_part, table_of
from bench.units import UNKNOWN, ms, percent

Statistic = Literal["mean", "share", "median", "p95"]

DEEPSPEED_NOTE = (
    "Under DeepSpeed, the engine runs the optimizer step inside backward: bwd contains optim_step and unscale_clip,"
    " which are near zero themselves. Compare the total between backends."
)
WAITING_NOTE = "The times contain waiting for other ranks: the report's table Own work of ranks tells the two apart."
P95_NOTE = f"p95 needs {P95_NEEDS} steps"

STATISTICS: dict[Statistic, Callable[[Times], float | None]] = {
    "mean": lambda times: times.mean_s,
    "median": lambda times: times.median_s,
    "p95": lambda times: times.p95_s,
}


def phases(summary: Summary, statistic: Statistic) -> Table:
    """One row per measured result: the ``mean``, ``median``, ``p95`` or ``share`` of every phase."""
    names = PHASE_NAMES if statistic == "share" else (*PHASE_NAMES, "total")
    rows, left_out = detailed_rows(summary)
    shown = [
        (row, window)
        for row in rows
        if row.measured
        and (window := row.measured.phases)
        and any(_value(name, statistic, window) != UNKNOWN for name in names)
    ]
    columns = [
        *of_part(_row, row_columns(summary)),
        Column[_RowPhases]("rank", lambda pair: UNKNOWN if pair[1].rank is None else str(pair[1].rank), numeric=True),
        *of_part(_window, [Column(name, partial(_value, name, statistic), numeric=True) for name in names]),
    ]
    return table_of(
        "Phases, % of total" if statistic == "share" else f"Phases, {statistic} ms",
        shown,
        columns,
        notes=(
            "rank: the slowest rank of the phase window; the times are those of this rank.",
            *([WAITING_NOTE] if any(_has_gate(row) for row, _ in shown) else []),
            *([f"{P95_NOTE}."] if statistic == "p95" else []),
            *([DEEPSPEED_NOTE] if any(under_deepspeed(row) for row, _ in shown) else []),
            *left_out,
        ),
    )


def _has_gate(row: Row) -> bool:
    return isinstance(row.measured, Sampled) and row.measured.gate is not None


_RowPhases = tuple[Row, Phases]


def _row(pair: _RowPhases) -> Row:
    return pair[0]


def _window(pair: _RowPhases) -> Phases:
    return pair[1]


def _value(name: str, statistic: Statistic, window: Phases) -> str:
    if statistic == "share":
        return percent(window.share(name)).removesuffix(" %")
    times = window.total if name == "total" else window.parts.get(name)
    return ms(STATISTICS[statistic](times) if times else None)


def under_deepspeed(row: Row) -> bool:
    if isinstance(row.measured, Sampled):
        return any(rank.raw.regime.distributed_type == "DEEPSPEED" for rank in row.measured.ranks)
    return str(row.settings["backend"]).startswith("zero")
