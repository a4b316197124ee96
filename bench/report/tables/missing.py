"""The section of what was planned and has no result."""

from collections.abc import Sequence

from bench.report.missing import Missing
from bench.report.naming import settings_name
from bench.report.tables.table import Column, Table, table_of

COLUMNS: tuple[Column[Missing], ...] = (
    Column("cell", lambda cell: settings_name(cell.axes, cell.axes)),
    Column(
        "batch per rank",
        lambda cell: ", ".join("search" if batch == "probe" else str(batch) for batch in cell.batches),
    ),
)


def not_measured(cells: Sequence[Missing]) -> Table:
    """One row a cell."""
    return table_of(
        "Not measured",
        cells,
        COLUMNS,
        notes=("Planned, but without a result. Run the same matrix into the same folder again to measure them.",),
    )
