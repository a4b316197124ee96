"""The contract of a fair comparison: all that must agree between two results, except what is compared. Pure."""

import json
from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from bench.records.cell import Cell
from bench.records.leaves import differing_keys
from bench.records.machine import Hardware, Machine
from bench.records.outcome import Ok, Result
from bench.units import UNKNOWN

OBSERVED = frozenset({"masters_dtype", "optimizer_dtype"})
"""Known only of measured rows: a cell that ran out of memory has none."""
PARTIAL = OBSERVED | {"weights"}
"""Fields that one side alone may know: `train.weights` does not apply to every backend."""
RUN = "run"
"""The axis, and the contract's field, that `merge_runs` adds where two runs hold the same cell."""


def contract_of(result: Result) -> dict[str, JsonValue]:
    """Everything that must agree, by name: all that decides what was computed, where, and how it was measured.

    This includes the backend; a comparison of backends excepts it. Of the observed regime, it includes only the
    precision of the master weights, of the optimizer state and of float32 products: how weights are held and reduced
    belongs to the backend.
    """
    cell, machine = result.attempt.cell, result.machine
    observed: dict[str, JsonValue] = {}
    if isinstance(result.outcome, Ok):
        regimes = [rank.regime for rank in result.outcome.ranks]
        regime = max(regimes, key=lambda regime: regime.trained_on_rank or 0)  # a rank may have nothing to step
        observed = {"masters_dtype": regime.masters_dtype, "optimizer_dtype": regime.optimizer_dtype}
        if regime.float32_products and cell.mixed_precision == "no":
            observed["float32_products"] = regime.float32_products
    fields = {
        "backend": cell.backend,
        "workload": cell.workload,
        **({} if cell.script is None else {"command": list(cell.script.command)}),
        **cell.options,
        "num_processes": cell.num_processes,
        "num_nodes": cell.num_nodes,
        "mixed_precision": cell.mixed_precision,
        **_accumulated(cell),
        "memory_limit_bytes": cell.memory_limit_bytes,
        **train_of(cell),
        **cell.measure.model_dump(mode="json"),
        **observed,
        **_of_machine(machine),
        **({RUN: result.axes[RUN]} if RUN in result.axes else {}),
    }
    return result.known(fields)


def _accumulated(cell: Cell) -> dict[str, JsonValue]:
    """How often gradients accumulate, where they do. A script has an option for it."""
    several = cell.gradient_accumulation_steps
    return {"gradient_accumulation_steps": several} if several > 1 and cell.script is None else {}


def train_of(cell: Cell) -> dict[str, JsonValue]:
    """The settings of training that apply. An option of the same name stands in their place, as in a matrix."""
    return {name: value for name, value in cell.train_settings.items() if name not in cell.options}


def _of_machine(machine: Machine) -> dict[str, JsonValue]:
    fields: dict[str, JsonValue] = {
        "hardware": [machine.cpu, *machine.accelerators],
        "driver": machine.driver,
        "versions": dict(machine.libraries),
        "allocator": machine.allocator,
    }
    if isinstance(machine.hardware, Hardware):  # imported rows of one machine may state these or not
        fields |= {
            "cpu_cores": machine.hardware.cores,
            "device_memory_bytes": _as_sold(machine.hardware.memory_bytes),
            "thread_settings": dict(machine.threads),
        }
    return fields


def _as_sold(memory_bytes: int) -> int:
    """Rounded up to the next eighth of a power of two: the kernel and the driver reserve a share that varies."""
    step = 1 << max(memory_bytes.bit_length() - 4, 0)
    return -(-memory_bytes // step) * step


def machine_names(machines: Sequence[Machine]) -> list[str | None]:
    """A name for each machine. Machines have the same name when they agree in all that `contract_of` reads of them.

    All names are None where there is only one kind.
    """
    kinds = [contract_key(_of_machine(machine)) for machine in machines]
    distinct = dict(zip(kinds, machines, strict=True))
    if len(distinct) < 2:
        return [None for _ in machines]
    devices = [" + ".join(dict.fromkeys(one.accelerators)) or one.cpu or UNKNOWN for one in distinct.values()]
    names = [name if devices.count(name) == 1 else f"{name} ({number})" for number, name in enumerate(devices, 1)]
    by_kind = dict(zip(distinct, names, strict=True))
    return [by_kind[kind] for kind in kinds]


def unlike_fields(one: Mapping[str, JsonValue], other: Mapping[str, JsonValue], *, but: str) -> tuple[str, ...]:
    """The fields in which two contracts differ, except ``but``, the one that is compared.

    A field that only one contract knows counts as different, unless it is `PARTIAL`.
    """
    return tuple(
        name
        for name in differing_keys(one, other)
        if name != but and (name not in PARTIAL or (name in one and name in other))
    )


def fields_in_words(fields: Sequence[str], one: Mapping[str, JsonValue], other: Mapping[str, JsonValue]) -> str:
    """The names of fields that differ; those that only one side knows say so."""
    return ", ".join(
        name if (name in one) == (name in other) else f"{name} (known of one side alone)" for name in fields
    )


def contract_key(contract: Mapping[str, JsonValue], *, without: frozenset[str] = frozenset()) -> str:
    """A string that is equal for contracts that agree in all fields, except in the fields ``without``."""
    return json.dumps({name: value for name, value in contract.items() if name not in without}, sort_keys=True)
