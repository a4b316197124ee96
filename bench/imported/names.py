"""The names that profilers and bench itself give to columns and keys, as fields of an import. Pure."""

from collections.abc import Sequence

from bench.imported.fields import FIELDS
from bench.records.claim import METRICS

FROM_PROFILERS = {
    "global_step_time_s": "step_time_s",
    "per_rank_step_time_s": "step_time_s_per_rank",
    "peak_alloc_gb_worst": "peak_allocated_gb",
    "peak_reserved_gb_worst": "peak_reserved_gb",
    "batch_per_rank": "batch",
    "world_size": "num_processes",
}
FROM_BENCH = {
    # The mean of a phase keeps its unit: forward_s.
    name: name.removesuffix("_mean") if name.endswith("_mean") else metric.short
    for name, metric in METRICS.items()
}


def is_own(columns: Sequence[str]) -> bool:
    """Whether `bench report` wrote a table with these columns."""
    return {"cell", "batch_global"} <= set(columns)


def fields_of(columns: Sequence[str]) -> dict[str, str | None]:
    """The field of each column, or a name that is none. None: bench wrote it, and an import has no place for it.

    In bench's own tables, the settings stand before the batch; one that is no field of a matrix is the workload's.
    """
    settings = columns[: columns.index("batch_global")] if is_own(columns) else ()

    def field(column: str) -> str | None:
        name = {**FROM_PROFILERS, **FROM_BENCH}.get(column, column)
        if name in FIELDS or not settings:
            return name
        return f"workload.{name}" if column in settings and column != "cell" else None

    return {column: field(column) for column in columns}
