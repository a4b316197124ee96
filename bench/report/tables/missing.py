"""The section of what was planned and has no result."""

from collections.abc import Mapping, Sequence

from bench.report.missing import Missing
from bench.report.tables.attempts import REASON_LIMIT, Table, caption, one_line, setting


def not_measured(cells: Sequence[Missing], unreadable: Mapping[str, str] | None = None) -> Table:
    """One row a cell, and one a file that cannot be read.

    Args:
        unreadable: files of the run and what is wrong with each.
    """
    planned = [(_name(cell), ", ".join(_batch(batch) for batch in cell.batches), "no result yet") for cell in cells]
    torn = [
        (one_line(file), "", one_line(f"cannot be read: {why}", REASON_LIMIT))
        for file, why in (unreadable or {}).items()
    ]
    return Table(
        title="Not measured",
        headers=("cell or file", "batch per rank", "why"),
        rows=(*planned, *torn),
        numeric=frozenset(),
        notes=("`bench run` with the same matrix and folder measures what has no result yet.",),
    )


def _name(cell: Missing) -> str:
    return ", ".join(
        setting(name, value) if name == "backend" else f"{caption(name)} {setting(name, value)}"
        for name, value in cell.axes.items()
    )


def _batch(batch: int | str) -> str:
    return "search" if batch == "probe" else str(batch)
