"""The section of planned attempts without a result, and of files that cannot be read."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bench.errors import one_line
from bench.report.missing import Missing
from bench.report.naming import settings_name
from bench.report.tables.table import Column, Table, table_of


class _Row(NamedTuple):
    place: str
    batches: str
    why: str


COLUMNS: tuple[Column[_Row], ...] = (
    Column("cell or file", lambda row: row.place),
    Column("batch per rank", lambda row: row.batches),
    Column("why", lambda row: row.why),
)


def not_measured(cells: Sequence[Missing], unreadable: Mapping[str, str] | None = None) -> Table:
    """One row a cell, and one a file that cannot be read.

    Args:
        unreadable: files of the runs, and what is wrong with each.
    """
    planned = [_Row(settings_name(cell.axes, cell.axes), _batches(cell), _why(cell)) for cell in cells]
    torn = [
        _Row(one_line(file), "", one_line(f"cannot be read: {why}", 200)) for file, why in (unreadable or {}).items()
    ]
    return table_of(
        "Not measured",
        [*planned, *torn],
        COLUMNS,
        notes=("Run the same matrix into the same folder again to measure what has no result yet.",),
    )


def _why(cell: Missing) -> str:
    if cell.launches is not None:
        return "{} of {} launches".format(*cell.launches)
    return "no result yet" + (f"; a walk trained batches up to {cell.walked_to}" if cell.walked_to else "")


def _batches(cell: Missing) -> str:
    return ", ".join([*map(str, cell.batches), *(["search"] if cell.search else [])])
