"""The section that compares what ranks send by formula with what the flight recorder saw."""

from bench.report.communication import Sent, communication
from bench.report.naming import cell_name
from bench.report.rows import Summary
from bench.report.tables.table import Column, Table, table_of
from bench.units import UNKNOWN, size


def communication_table(summary: Summary) -> Table:
    """One row for each cell and operation."""
    columns = [
        Column[Sent]("cell", lambda sent: cell_name(summary, sent.cell.rows[0])),
        Column[Sent]("operation", lambda sent: sent.operation.replace("_", "-")),
        Column[Sent]("calls", lambda sent: UNKNOWN if sent.calls is None else str(sent.calls), numeric=True),
        Column[Sent]("recorded", lambda sent: _size(sent.recorded_bytes), numeric=True),
        Column[Sent](
            "formula", lambda sent: ("at most " if sent.upper_bound else "") + _size(sent.formula_bytes), numeric=True
        ),
        Column[Sent](
            "recorded / formula", lambda sent: UNKNOWN if sent.ratio is None else f"{sent.ratio:.3f}", numeric=True
        ),
    ]
    return table_of(
        "Bytes sent in a step",
        [sent for cell in summary.cells for sent in communication(cell)],
        columns,
        notes=(
            "By each rank, with ring algorithms. recorded: from the payloads of all collectives in the last step of the"
            " phase window, by torch's flight recorder; n/a without a phase window, and where the recorder lost a part"
            " of it. formula: after arXiv:1910.02054 and arXiv:2304.11277, as torch 2.13, accelerate 1.15 and DeepSpeed"
            " 0.19 apply it; n/a for your own accelerate config. gloo has no reduce-scatter:"
            " torch runs an all-reduce, which sends twice as much. Recorded operations without a formula are left out"
            " below 1 % of the payload, such as the gather of the losses.",
        ),
    )


def _size(n_bytes: float | None) -> str:
    return UNKNOWN if n_bytes is None else size(n_bytes)
