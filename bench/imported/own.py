"""The columns of the csv and json that bench itself writes, as fields of an import. Pure."""

from collections.abc import Sequence

from bench.imported.fields import FIELDS
from bench.records.claim import METRICS

LONG_NAMES = {
    # The mean of a phase keeps its unit: forward_s.
    name: name.removesuffix("_mean") if name.endswith("_mean") else metric.short
    for name, metric in METRICS.items()
}
"""The names that csv, json and claims give to figures, and the matching field."""


def is_own(columns: Sequence[str]) -> bool:
    """Whether `bench report` wrote a table with these columns."""
    return {"cell", "batch_global"} <= set(columns)


def fields_of(columns: Sequence[str]) -> dict[str, str | None]:
    """The field of each column; None for a column that an import has no place for, such as a median.

    The settings stand before the batch. One that is no field of a matrix belongs to the workload.
    """
    settings = columns[: columns.index("batch_global")]

    def field(name: str) -> str | None:
        if name in FIELDS:
            return name
        return f"workload.{name}" if name in settings and name != "cell" else None

    return {name: field(name) for name in columns}
