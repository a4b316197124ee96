"""The section of what was planned and has no result."""

from collections.abc import Sequence

from bench.report.missing import Missing
from bench.report.tables.attempts import Table, caption, setting


def not_measured(cells: Sequence[Missing]) -> Table:
    """One row a cell."""
    return Table(
        title="Not measured",
        headers=("cell", "batch per rank"),
        rows=tuple((_name(cell), ", ".join(_batch(batch) for batch in cell.batches)) for cell in cells),
        numeric=frozenset(),
        notes=("Planned, and without a result: `bench run` with the same matrix and folder measures them.",),
    )


def _name(cell: Missing) -> str:
    return ", ".join(
        setting(name, value) if name == "backend" else f"{caption(name)} {setting(name, value)}"
        for name, value in cell.axes.items()
    )


def _batch(batch: int | str) -> str:
    return "search" if batch == "probe" else str(batch)
