"""The settings of a cell by name, which of them become columns, and what a fair comparison controls: the
variables, which must agree between two results. Pure."""

import json
from collections.abc import Container, Mapping, Sequence

from pydantic import JsonValue

from bench.records import plan
from bench.records.cell import PARTLY_APPLY, Cell
from bench.records.json_diff import differing_keys, same
from bench.records.machine import Hardware, Machine
from bench.records.outcome import Ok, Result
from bench.units import UNKNOWN

SEEN_WHEN_MEASURED = frozenset({"masters_dtype", "optimizer_dtype"})
"""Known only of measured rows: a cell that ran out of memory has none."""
PARTIAL = SEEN_WHEN_MEASURED | PARTLY_APPLY
"""Fields that one side alone may know."""
ID = "cell id"
"""The setting that tells cells apart which no other one does. No option has a name with a space."""
RUN = plan.RUN
"""The axis, and the controlled variable, that `merge_runs` adds where two runs hold the same cell."""


Settings = dict[str, JsonValue]


def settings_of(result: Result, named: Sequence[str] = (), cell_id: str | None = None) -> Settings:
    """Named values of a cell. The axes give the order; what the cell resolved them to gives the value.

    Args:
        named: settings of other results. A plain option of this one with such a name becomes a setting, too.
        cell_id: saves computing it again.
    """
    cell, options = result.attempt.cell, result.attempt.cell.options
    preset = {"preset": cell.options["preset"]} if "preset" in cell.options else {}
    settings = {
        "backend": cell.backend,
        **{name: value for name, value in result.axes.items() if name not in ("backend", "batch")},
        **{name: options[name] for name in named if name in options and name not in result.axes},
        "workload": cell.workload,
        **preset,
        "num_processes": cell.num_processes,
        **({"num_nodes": cell.num_nodes} if cell.num_nodes > 1 or "num_nodes" in named else {}),
        "mixed_precision": cell.mixed_precision,
        **_step_of(cell),
        ID: cell_id or cell.id,
    }
    return result.known(settings)


def distinguishing_settings(settings: Sequence[Settings]) -> tuple[str, ...]:
    """Names whose values differ between cells, plus the cell's id when two cells still look the same.

    What is known of some cells alone, and the same for these, is named only where nothing else tells apart two cells,
    or what two cells ask of their backends: imported figures state few of the settings that a measured cell has.
    """
    names = [name for name in dict.fromkeys(name for of_cell in settings for name in of_cell) if name != ID]
    found = {name for name in names if name == "backend" or _varies(settings, name)}

    def told_apart(by: Container[str]) -> int:
        told = [name for name in names if name in by and name != "backend"]
        return len({_key(of_cell, told) for of_cell in settings})

    partly = [name for name in names if any(name not in of_cell for of_cell in settings)]
    partly = [name for name in partly if name not in found and name not in PARTIAL]
    there_are = told_apart({*found, *partly}) if partly else 0
    for name in partly:
        if (now := told_apart(found)) == there_are:
            break
        if told_apart({*found, name}) > now:
            found.add(name)
    columns = [name for name in names if name in found]
    unique = len({_key(of_cell, columns) for of_cell in settings}) == len(settings)
    return tuple(columns if unique else [*columns, ID])


def options_without_axis(cells: Sequence[tuple[Cell, Settings]], columns: Sequence[str]) -> tuple[str, ...]:
    """Options that differ, without being an axis, between cells that otherwise differ at most in their backend.

    Args:
        cells: with their settings.
    """
    names = [name for name in columns if name not in ("backend", ID)]
    alike: dict[str, list[Settings]] = {}
    for cell, settings in cells:
        alike.setdefault(_key(settings, names), []).append(cell.options)
    return tuple(
        dict.fromkeys(
            name
            for options in alike.values()
            for name in dict.fromkeys(name for of_cell in options for name in of_cell)
            if name not in columns and (_varies(options, name) or any(name not in of_cell for of_cell in options))
        )
    )


def _varies(settings: Sequence[Settings], name: str) -> bool:
    """A missing value is not the same as null. Where a setting does not apply, or is not known, it does not vary."""
    known = [of_cell[name] for of_cell in settings if name in of_cell]
    return any(not same(value, known[0]) for value in known)


def _key(settings: Settings, names: Sequence[str]) -> str:
    return json.dumps([[settings[name]] if name in settings else [] for name in names], sort_keys=True)


def controlled_of(result: Result) -> dict[str, JsonValue]:
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
    fields: dict[str, JsonValue] = {
        "backend": cell.backend,
        "workload": cell.workload,
        **({} if cell.script is None else {"command": list(cell.script.command)}),
        "num_processes": cell.num_processes,
        "num_nodes": cell.num_nodes,
        "mixed_precision": cell.mixed_precision,
        **_step_of(cell),
        **observed,
        **_of_machine(machine),
        **({RUN: result.axes[RUN]} if RUN in result.axes else {}),
    }
    options = {f"workload.{name}" if name in fields else name: value for name, value in cell.options.items()}
    return result.known({**options, **fields})


def _step_of(cell: Cell) -> Settings:
    """What a step does, and how it is measured. An option of the same name as a setting of `measure` keeps it."""
    measure = cell.measure.model_dump(mode="json")
    return {
        "memory_limit_bytes": cell.memory_limit_bytes,
        **train_of(cell),
        **{f"measure.{name}" if name in cell.options else name: value for name, value in measure.items()},
    }


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
    """A name for each machine. Machines have the same name when they agree in all that `controlled_of` reads of them.

    All names are None where there is only one kind.
    """
    kinds = [controlled_key(_of_machine(machine)) for machine in machines]
    distinct = dict(zip(kinds, machines, strict=True))
    if len(distinct) < 2:
        return [None for _ in machines]
    devices = [
        " + ".join(dict.fromkeys(machine.accelerators)) or machine.cpu or UNKNOWN for machine in distinct.values()
    ]
    names = [name if devices.count(name) == 1 else f"{name} ({number})" for number, name in enumerate(devices, 1)]
    by_kind = dict(zip(distinct, names, strict=True))
    return [by_kind[kind] for kind in kinds]


def unlike_fields(one: Mapping[str, JsonValue], other: Mapping[str, JsonValue], *, but: str) -> tuple[str, ...]:
    """The fields in which two cells' controlled variables differ, except ``but``, the one that is compared.

    A field that only one of them knows counts as different, unless it is `PARTIAL`.
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


def controlled_key(controlled: Mapping[str, JsonValue], *, without: frozenset[str] = frozenset()) -> str:
    """A string that is equal for controlled variables that agree in all fields, except in the fields ``without``."""
    return json.dumps({name: value for name, value in controlled.items() if name not in without}, sort_keys=True)
