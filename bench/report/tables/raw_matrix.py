"""The raw matrix, with every result in one row, and the columns that identify a row."""

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import TypeVar

from bench.records.figures import CAPACITY_SHARE, COLUMNS, Figure
from bench.records.outcome import KindTraits
from bench.report.naming import batch_of, caption, row_name, short_reason, value_of
from bench.report.rows import Measured, Rank, Row, Sampled, Summary
from bench.report.tables.table import Column, Table, of_part, table_of
from bench.units import in_table, ms, rate

Item = TypeVar("Item")

MAX_DETAILED = 300
"""Rows of a table of details. Nobody reads more; the raw matrix has all of them."""


def matrix(summary: Summary) -> Table:
    """Every result, with the peak throughput of each cell in bold."""
    best = {cell.best.id for cell in summary.cells if cell.best}
    traits = {row.id: cell.traits(row) for cell in summary.cells for row in cell.rows}

    def measured(value: Callable[[Measured], str]) -> Callable[[Row], str]:
        return lambda row: value(row.measured) if row.measured else ""

    columns = [
        *row_columns(summary),
        Column[Row]("global batch", lambda row: str(row.batch_global), numeric=True),
        Column[Row](
            "samples/s",
            measured(lambda figures: rate(figures.samples_per_s_global)),
            numeric=True,
            bold=lambda row: row.id in best,
        ),
        Column[Row]("step ms", measured(lambda figures: ms(figures.step_time_s_rank_max)), numeric=True),
        *(
            Column[Row](figure.header, measured(partial(shown, figure)), numeric=True)
            for figure in figure_columns(summary)
        ),
        Column[Row]("of capacity", measured(partial(shown, CAPACITY_SHARE)), numeric=True),
        outcome_column(lambda row: row, lambda row: traits[row.id]),
    ]
    if any(row.launches for row in summary.rows):
        columns.insert(len(summary.columns) + 2, Column[Row]("launches", launches_in_words, numeric=True))
    if any(row.reason for row in summary.rows):
        columns.append(Column("reason", lambda row: short_reason(row.reason), prose=True))
    return table_of(
        "Raw matrix",
        summary.rows,
        columns,
        name=lambda row: row_name(summary, row),
        notes=(
            "Bold: the peak throughput of each cell. samples/s is global; step ms and memory are of the worst rank.",
            "of capacity: share of the memory that a rank may use. On a GPU it counts reserved memory and memory used"
            " outside torch, on a CPU the memory that the attempt allocated.",
        ),
    )


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
    return [*settings, Column("batch per rank", batch_of, numeric=True)]


def outcome_column(row_of: Callable[[Item], Row], traits: Callable[[Item], KindTraits]) -> Column[Item]:
    """A row's outcome in words, colored."""
    return Column(
        "outcome",
        lambda item: traits(item).word + few_steps(row_of(item).short),
        tone=lambda item: traits(item).tone,
    )


def few_steps(short: bool) -> str:
    """The addition to the name of an attempt with few steps."""
    return " (few steps)" if short else ""


def figure_columns(summary: Summary) -> list[Figure]:
    """The figures that these machines have columns of."""
    devices = {machine.hardware.device for machine in summary.machines}
    return [figure for figure in COLUMNS if not figure.devices or devices.intersection(figure.devices)]


def detailed_rows(summary: Summary) -> tuple[Sequence[Row], tuple[str, ...]]:
    """The rows of a table of details, and a note if these are not all measured rows."""
    measured = [row for row in summary.rows if row.measured]
    if len(measured) <= MAX_DETAILED:
        return measured, ()
    best = [cell.best for cell in summary.cells if cell.best]
    cells = f"the first {MAX_DETAILED} of {len(best)} cells" if len(best) > MAX_DETAILED else f"all {len(best)} cells"
    note = f"Only the fastest rows of {cells}, out of {len(measured)} measured rows: `bench show` prints every row."
    return best[:MAX_DETAILED], (note,)


def details_of(
    summary: Summary,
    title: str,
    columns: Sequence[Column[Sampled]],
    *,
    notes: Sequence[str],
    which: Callable[[Sampled], bool] = lambda _: True,
) -> Table:
    """A table of details with ``columns`` for every row that bench measured, and that ``which`` selects."""
    rows, left_out = detailed_rows(summary)
    pairs = [(row, row.measured) for row in rows if isinstance(row.measured, Sampled) and which(row.measured)]
    row, measured = itemgetter(0), itemgetter(1)
    return table_of(
        title, pairs, [*of_part(row, row_columns(summary)), *of_part(measured, columns)], notes=(*notes, *left_out)
    )
