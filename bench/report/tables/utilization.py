"""The section of utilization: operations and tokens a second, MFU and HFU."""

from collections.abc import Callable

from bench.report.naming import row_name
from bench.report.rows import Summary
from bench.report.tables.table import Column, Table, table_of
from bench.report.utilization import Utilization, utilization
from bench.units import UNKNOWN, percent, rate


def utilization_table(summary: Summary) -> Table:
    """One row for each measured batch of a workload that states operations or tokens; the short attempts of searches
    are left out."""
    used = [utilization(cell, row) for cell in summary.cells for row in cell.rows if not row.short]
    columns = [
        Column[Utilization]("attempt", lambda one: row_name(summary, one.row)),
        Column[Utilization]("tokens/s", lambda one: rate(one.tokens_per_s_global), numeric=True),
        Column[Utilization]("model TFLOP/s", _tera(lambda one: one.model_flops_per_s_per_rank), numeric=True),
        Column[Utilization]("with recomputation", _tera(lambda one: one.hardware_flops_per_s_per_rank), numeric=True),
        Column[Utilization]("peak TFLOP/s", _tera(lambda one: one.peak_flops_per_s), numeric=True),
        Column[Utilization]("MFU", lambda one: percent(one.mfu), numeric=True),
        Column[Utilization]("HFU", lambda one: percent(one.hfu), numeric=True),
    ]
    return table_of(
        "Utilization",
        [one for one in used if one is not None],
        columns,
        notes=(
            "tokens/s of all ranks; TFLOP/s of one. MFU counts the matrix products that a step needs, HFU also those"
            " that gradient checkpointing repeats, both as the workload states them, over the dense peak rate on the"
            " device's datasheet (arXiv:2204.02311, appendix B). n/a: the peak of this device is not known, as for any"
            " CPU.",
        ),
    )


def _tera(part: Callable[[Utilization], float | None]) -> Callable[[Utilization], str]:
    def words(one: Utilization) -> str:
        flops_per_s = part(one)
        return UNKNOWN if flops_per_s is None else f"{flops_per_s / 1e12:.3g}"

    return words
