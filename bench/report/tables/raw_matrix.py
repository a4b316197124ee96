"""The raw matrix, with every result in one row, and the columns that identify a row."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import TypeVar

from bench.records.figures import CAPACITY_SHARE, COLUMNS, Figure
from bench.records.outcome import KindTraits
from bench.report.naming import MICRO_BATCHES_CAPTION, batch_of, caption, few_steps, row_name, short_reason, value_of
from bench.report.rows import Measured, Rank, Row, Sampled, Summary, Times
from bench.report.tables.table import Column, Number, Table, of_part, table_of
from bench.units import in_table, ms, rate

Item = TypeVar("Item")

MAX_DETAILED = 300
"""Rows of a table of details. Nobody reads more; the raw matrix has all of them."""


def matrix(summary: Summary) -> Table:
    """Every result, with the peak throughput of each cell in bold."""
    best = {cell.best.id for cell in summary.cells if cell.best}
    traits = {row.id: cell.traits(row) for cell in summary.cells for row in cell.rows}
    samples_per_s = measured_column("samples/s", lambda measured: rate(measured.samples_per_s_global))
    columns = [
        *row_columns(summary),
        *micro_batches(summary.rows, lambda row: row, beside=summary.columns),
        Number[Row]("global batch", lambda row: str(row.batch_global)),
        *([Number[Row]("launches", launches_in_words)] if any(row.launches for row in summary.rows) else []),
        replace(samples_per_s, bold=lambda row: row.id in best),
        measured_column("step ms", lambda measured: ms(measured.step_time_s_rank_max)),
        *(measured_column(figure.header, partial(shown, figure)) for figure in figure_columns(summary)),
        measured_column("memory used", partial(shown, CAPACITY_SHARE)),
        outcome_column(lambda row: traits[row.id]),
    ]
    if any(row.reason for row in summary.rows):
        columns.append(Column("reason", lambda row: short_reason(row.reason), prose=True))
    return table_of(
        "All results",
        summary.rows,
        columns,
        name=lambda row: row_name(summary, row),
        notes=(
            "Bold: the peak throughput of each cell. samples/s is global; step ms and memory are of the worst rank.",
            "memory used: share of the memory that a rank may use. On a GPU it counts reserved memory and memory used"
            " outside torch, on a CPU the memory that the attempt allocated.",
        ),
    )


def measured_column(header: str, words: Callable[[Measured], str]) -> Column[Row]:
    """A column of numbers; empty where nothing was measured."""
    return Number(header, lambda row: words(row.measured) if row.measured else "")


def times_columns(prefix: str = "") -> list[Column[Times]]:
    """Mean, median and 95th percentile."""
    return [
        Number(f"{prefix}mean ms", lambda times: ms(times.mean_s)),
        Number(f"{prefix}median ms", lambda times: ms(times.median_s)),
        Number(f"{prefix}p95 ms", lambda times: ms(times.p95_s)),
    ]


def shown(figure: Figure, measured: Measured) -> str:
    """A figure as tables have it."""
    return in_table(measured.of(figure), figure.kind)


def of_rank(figure: Figure, rank: Rank) -> str:
    """The same, of one rank."""
    return in_table(figure.of_rank(rank.raw) if figure.of_rank else None, figure.kind)


def launches_in_words(row: Row) -> str:
    """``5``, or ``4 of 5`` where one measured nothing."""
    measured = sum(launch.measured is not None for launch in row.each)
    return str(measured) if measured == len(row.each) else f"{measured} of {len(row.each)}"


def row_columns(summary: Summary) -> list[Column[Row]]:
    """The columns that identify a row: the settings that differ, and the batch."""
    settings = [Column[Row](caption(name), partial(value_of, name=name)) for name in summary.columns]
    return [*settings, Number("batch per rank", batch_of)]


def micro_batches(
    items: Iterable[Item], row_of: Callable[[Item], Row | None], *, beside: Collection[str] = ()
) -> list[Column[Item]]:
    """A column for the micro-batches of a step, where some step may have several, unless it is ``beside`` those of the
    settings with this name."""
    if MICRO_BATCHES_CAPTION in beside or not any(
        row.global_batch or row.micro_batches > 1 for row in map(row_of, items) if row
    ):
        return []
    return [Number(MICRO_BATCHES_CAPTION, lambda item: str(row.micro_batches) if (row := row_of(item)) else "")]


def outcome_column(traits: Callable[[Row], KindTraits]) -> Column[Row]:
    """A row's outcome in words, colored."""
    return Column("outcome", lambda row: traits(row).word + few_steps(row.short), tone=lambda row: traits(row).tone)


def figure_columns(summary: Summary) -> list[Figure]:
    """The figures that these machines have columns of."""
    devices = {machine.hardware.device for machine in summary.machines}
    return [
        figure
        for figure in COLUMNS
        if (not figure.devices or devices.intersection(figure.devices))
        and (not figure.rare or any(row.measured and row.measured.of(figure) is not None for row in summary.rows))
    ]


def detailed(
    summary: Summary, parts: Callable[[Row], Iterable[Item]]
) -> tuple[list[tuple[Row, Item]], tuple[str, ...]]:
    """The parts of the rows of a table of details, each with its row, and a note if these are not all measured rows."""
    rows = [row for row in summary.rows if row.measured]
    note: tuple[str, ...] = ()
    if len(rows) > MAX_DETAILED:
        best = [cell.best for cell in summary.cells if cell.best]
        cells = f"the first {MAX_DETAILED} of" if len(best) > MAX_DETAILED else "all"
        note = (
            f"Only the fastest rows of {cells} {len(best)} cells, out of {len(rows)} measured rows: `bench show`"
            " prints every row.",
        )
        rows = best[:MAX_DETAILED]
    return [(row, part) for row in rows for part in parts(row)], note


def details_of(
    summary: Summary,
    title: str,
    parts: Callable[[Row], Iterable[Item]],
    columns: Sequence[Column[Item]],
    *,
    notes: Sequence[str],
) -> Table:
    """A table of details: what identifies a row, then ``columns`` for each of its ``parts``."""
    pairs, left_out = detailed(summary, parts)
    row, part = itemgetter(0), itemgetter(1)
    return table_of(
        title, pairs, [*of_part(row, row_columns(summary)), *of_part(part, columns)], notes=(*notes, *left_out)
    )


def sampled(row: Row) -> list[Sampled]:
    """The only part of a row that bench measured."""
    return [row.sampled] if row.sampled else []
