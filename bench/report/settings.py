"""The settings of a cell by name, and which of them become columns because they differ between cells. Pure."""

import json
from collections.abc import Sequence

from pydantic import JsonValue

from bench.records.leaves import same
from bench.records.outcome import Result
from bench.report.contract import PARTIAL, train_of
from bench.report.rows import CellRows


def settings_of(result: Result, named: Sequence[str] = (), cell_id: str | None = None) -> dict[str, JsonValue]:
    """Named values of a cell. The axes give the order; what the cell resolved them to gives the value.

    Args:
        named: axes of other results. A plain option of this one with such a name becomes a setting, too.
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
        **({"num_nodes": cell.num_nodes} if cell.num_nodes > 1 else {}),
        "mixed_precision": cell.mixed_precision,
        "memory_limit_bytes": cell.memory_limit_bytes,
        **train_of(cell),
        **cell.measure.model_dump(mode="json"),
        "cell": cell_id or cell.id,
    }
    return result.known(settings)


def distinguishing_settings(settings: Sequence[dict[str, JsonValue]]) -> tuple[str, ...]:
    """Names whose values differ between cells, plus the cell's id when two cells still look the same."""
    names = [name for name in dict.fromkeys(name for one in settings for name in one) if name != "cell"]
    columns = [name for name in names if name == "backend" or _varies(settings, name)]
    unique = len({_key(one, columns) for one in settings}) == len(settings)
    return tuple(columns if unique else [*columns, "cell"])


def options_without_axis(cells: Sequence[CellRows], columns: Sequence[str]) -> tuple[str, ...]:
    """Options that differ, without being an axis, between cells that otherwise differ at most in their backend."""
    names = [name for name in columns if name not in ("backend", "cell")]
    alike: dict[str, list[dict[str, JsonValue]]] = {}
    for cell in cells:
        alike.setdefault(_key(cell.rows[0].settings, names), []).append(cell.cell.options)
    return tuple(
        dict.fromkeys(
            name
            for options in alike.values()
            for name in dict.fromkeys(name for one in options for name in one)
            if name not in columns and _varies(options, name)
        )
    )


def _varies(settings: Sequence[dict[str, JsonValue]], name: str) -> bool:
    """A missing value is not the same as null. Where a setting does not apply, it does not vary."""
    settings = [one for one in settings if name in one or name not in PARTIAL]
    first = settings[0] if settings else {}
    return any((name in one) != (name in first) or not same(one.get(name), first.get(name)) for one in settings)


def _key(settings: dict[str, JsonValue], names: Sequence[str]) -> str:
    return json.dumps([[settings[name]] if name in settings else [] for name in names], sort_keys=True)
