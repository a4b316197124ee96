"""The section that compares theory with measurement."""

from collections.abc import Callable
from typing import NamedTuple

from bench.report.naming import cell_name
from bench.report.rows import CellRows, Summary
from bench.report.tables.regimes import parameters_of
from bench.report.tables.table import Column, Table, table_of
from bench.report.theory import State, Theory, theory_of
from bench.units import UNKNOWN, percent, size


class _Line(NamedTuple):
    cell: CellRows
    theory: Theory


def theory(summary: Summary) -> Table:
    """One row a cell: the predicted state, the measured peak, the rest and recomputation.

    Empty where the regime of no cell is known.
    """
    lines = [_Line(cell, theory_of(cell)) for cell in summary.cells]
    cpu = any(machine.hardware.device == "cpu" for machine in summary.machines)
    regimes = [line.theory.regime for line in lines if line.theory.regime]
    frozen = any(regime.trained_parameters < regime.parameters for regime in regimes)
    columns = [
        Column[_Line]("cell", lambda line: cell_name(summary, line.cell.rows[0])),
        Column[_Line](
            "parameters",
            lambda line: parameters_of(line.theory.regime) if line.theory.regime else UNKNOWN,
            numeric=True,
        ),
        Column[_Line]("weights", _of_state(lambda state: state.weights), numeric=True),
        Column[_Line]("gradients", _of_state(lambda state: state.gradients), numeric=True),
        Column[_Line]("buckets", _of_state(lambda state: state.buckets), numeric=True),
        Column[_Line]("masters", _of_state(lambda state: state.masters), numeric=True),
        Column[_Line]("Adam", _of_state(lambda state: state.moments), numeric=True),
        Column[_Line]("predicted", _of_state(lambda state: state.total), numeric=True),
        Column[_Line](
            "measured", lambda line: size(line.theory.peak.allocated) if line.theory.peak else UNKNOWN, numeric=True
        ),
        Column[_Line]("rest", lambda line: _size(line.theory.rest_bytes), numeric=True),
        Column[_Line]("recomputed", lambda line: percent(line.theory.recomputed_share), numeric=True),
        Column[_Line](
            "from batch",
            lambda line: " and ".join(map(str, line.theory.peak.batches)) if line.theory.peak else UNKNOWN,
        ),
    ]
    return table_of(
        "Theory and measurement",
        lines if regimes else (),
        columns,
        notes=(
            "weights to predicted: bytes of model state on each rank after arXiv:1910.02054; n/a for"
            " optimizers other than AdamW."
            + (" Under FSDP1, all parameters of a unit have gradients if one is trained." if frozen else "")
            + " measured: peak allocated without the part that grows with the batch, extrapolated from two"
            " batches; with only one batch, its full peak. buckets: DDP's copy of the gradients. rest: memory that a"
            " step holds for a short time, such as gathered units and fp32 gradients in the optimizer step."
            + (" On a CPU, measured is the growth of the data segment, which includes libraries." if cpu else ""),
            "recomputed: share of all operations that gradient checkpointing repeats, as the workload states them.",
        ),
    )


def _of_state(part: Callable[[State], float]) -> Callable[[_Line], str]:
    return lambda line: size(part(line.theory.state)) if line.theory.state else UNKNOWN


def _size(n_bytes: float | None) -> str:
    return UNKNOWN if n_bytes is None else size(n_bytes)
