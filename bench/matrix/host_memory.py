"""Whether the ranks of a cell can build their models in the memory of the host. Pure."""

from collections.abc import Sequence

from bench import workloads
from bench.backends import fp32_weights, shards_parameters
from bench.errors import InputError
from bench.records.base import Device
from bench.records.cell import Cell
from bench.records.plan import CellPlan
from bench.units import size


def refuse_what_cannot_fit(plans: Sequence[CellPlan], device: Device, host_bytes: int) -> None:
    """Refuse a launch that the kernel would kill while its ranks build their models.

    Raises:
        InputError: the weights alone, as all ranks hold them at the same time, are larger than the host's memory.
    """
    for cell in (plan.cell for plan in plans if plan.cell.script is None):
        parameters = _parameters(cell)
        each = int(parameters * _bytes_per_parameter(cell, device))
        ranks = cell.ranks_per_node
        if (needed := each * ranks) > host_bytes:
            raise InputError(
                f"{cell.backend}: {ranks} ranks build a model of {parameters / 1e9:.2f} billion parameters"
                f" on the host. Their weights take {ranks} × {size(each)} = {size(needed)}, and this"
                f" machine has {size(host_bytes)}",
                fix="fewer ranks (launch.num_processes), a smaller model, or --force to try it",
            )


def _parameters(cell: Cell) -> int:
    """0 where the workload does not say."""
    kind = workloads.load(cell.workload)
    if kind.parameter_counts is None:
        return 0
    return sum(kind.parameter_counts(kind.Config.model_validate(cell.options)).values())


def _bytes_per_parameter(cell: Cell, device: Device) -> float:
    """What every rank certainly holds on the host at once: the whole model, before a backend shards or moves it; or
    only what it keeps there, if its weights are drawn in place. On a CPU, training adds far more to bf16 weights."""
    if workloads.load(cell.workload).draws:
        shares = cell.num_processes // cell.train.dp_replicate_size if shards_parameters(cell) else 1
        return 0 if device == "cuda" else 4 / shares
    return 2 if device == "cuda" and not fp32_weights(cell) else 4
