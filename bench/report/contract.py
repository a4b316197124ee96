"""The contract of a fair comparison: what must agree between two results, but for the one thing that is compared."""

import json
from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from bench.machine import Machine
from bench.outcome import Ok, Result
from bench.units import UNKNOWN

PARTS_OF_BACKEND = ("sharding", "distributed_type")
"""Observed, but what a backend is: they differ with it."""


def contract_of(result: Result) -> dict[str, JsonValue]:
    """Everything that must agree, by name: all that decides what was computed, where, and how it was measured.

    The backend is among it: a comparison between backends excepts it. Of the observed regime only the masters' and
    the optimizer's precision: how weights are held and reduced is part of what a backend is.
    """
    cell, machine = result.attempt.cell, result.machine
    observed: dict[str, JsonValue] = {}
    if isinstance(result.outcome, Ok):
        regime = result.outcome.ranks[0].regime
        observed = {"masters_dtype": regime.masters_dtype, "optimizer_dtype": regime.optimizer_dtype}
    fields = {
        "backend": cell.backend,
        "workload": cell.workload,
        **cell.options,
        "num_processes": cell.num_processes,
        "mixed_precision": cell.mixed_precision,
        "memory_limit_bytes": cell.memory_limit_bytes,
        **cell.train.model_dump(mode="json"),
        **cell.measure.model_dump(mode="json"),
        **observed,
        "hardware": [machine.cpu, *machine.accelerators],
        "driver": machine.driver,
        "versions": dict(machine.libraries),
        "allocator": machine.allocator,
    }
    return result.known(fields)


def machine_names(machines: Sequence[Machine]) -> list[str | None]:
    """A name for each, the same for those whose results agree in all that `contract_of` takes of a machine.

    None for each where there is one kind.
    """
    kinds = [
        machine.model_dump(include={"cpu", "accelerators", "driver", "libraries", "allocator"}) for machine in machines
    ]
    distinct = [kind for number, kind in enumerate(kinds) if kind not in kinds[:number]]
    if len(distinct) < 2:
        return [None for _ in machines]
    devices = [" + ".join(dict.fromkeys(kind["accelerators"])) or kind["cpu"] or UNKNOWN for kind in distinct]
    names = [name if devices.count(name) == 1 else f"{name} ({number})" for number, name in enumerate(devices, 1)]
    return [names[distinct.index(kind)] for kind in kinds]


def differing(one: Mapping[str, JsonValue], other: Mapping[str, JsonValue], *, but: str) -> tuple[str, ...]:
    """The fields in which two contracts differ, ``but`` for the one that is compared.

    A field that only one of them knows is no difference: what was not measured, or not published, cannot be held
    against a result.
    """
    return tuple(name for name, value in one.items() if name != but and name in other and not same(value, other[name]))


def same(one: JsonValue, other: JsonValue) -> bool:
    """Whether two values are equal as JSON: in Python ``1 == True``."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def key(contract: Mapping[str, JsonValue], *, without: frozenset[str] = frozenset()) -> str:
    """The same for contracts that agree in everything but the fields ``without``."""
    return json.dumps({name: value for name, value in contract.items() if name not in without}, sort_keys=True)
