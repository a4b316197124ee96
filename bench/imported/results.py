"""A row -> a Result. What the row does not say stays unknown. Pure."""

import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

from pydantic import JsonValue

from bench.errors import InputError, InputErrors
from bench.imported import contradictions, fields, names
from bench.imported.files import Given
from bench.matrix.matrix_file import NAME_IN_WORDS
from bench.matrix.validation import validate
from bench.records.base import Device, Frozen
from bench.records.cell import Attempt, Cell, Measure, Train
from bench.records.figures import CAPACITY_SHARE, STATED, Figure
from bench.records.machine import LIBRARIES, Machine, StatedHardware
from bench.records.outcome import INVALID, Failed, Hang, Oom, Outcome, OutcomeKind, Reported, Result, Skipped
from bench.records.phases import STORED_PHASES
from bench.records.stated import BYTES, MEMORIES, RESULTS, SECONDS

Value = TypeVar("Value")


class _OfCell(Frozen):
    """The settings of a cell that do not belong to the workload, validated like those of a matrix."""

    memory_limit_bytes: int | None = None
    train: Train = Train()
    measure: Measure = Measure()


def results_of(rows: Sequence[Given], at: str) -> list[Result]:
    """One result per row, in the same order. Rows with the same settings and batch are launches of one attempt.

    Raises:
        InputErrors: values are invalid or missing, figures contradict each other, or a row is given twice.
    """
    launches: dict[str, list[tuple[Result, str]]] = {}
    results: list[Result] = []
    errors: list[InputError] = []
    # Rows with 4 and with 8 processes come from one machine, unless they say otherwise.
    devices = max((_count(row, "num_processes") or 1 for row in rows), default=1)
    for row in rows:
        try:
            result = _result(row, at, devices)
            earlier = launches.setdefault(result.attempt.slug, [])
            said = result.outcome, result.notes
            if where := next((where for one, where in earlier if (one.outcome, one.notes) == said), None):
                raise InputError(f"says the same as {where}", where=row.where, fix="leave one of the two out")
        except InputErrors as found:
            errors += found.errors
        except InputError as error:
            errors.append(error)
        else:
            earlier.append((result, row.where))
            attempt = result.attempt.model_copy(update={"launch": len(earlier)})
            results.append(result.model_copy(update={"attempt": attempt}))
    if errors:
        raise InputErrors(errors)
    return results


def _count(row: Given, name: str) -> int | None:
    try:
        return row.read(name, fields.count)
    except InputError:
        return None  # its row says so


def _result(row: Given, at: str, devices: int) -> Result:
    errors = [error for name in REQUIRED if (error := _missing(row, name))]
    if errors:
        raise InputErrors(errors)
    options = {
        name.removeprefix("workload."): row.read(name, partial(fields.option, name))
        for name in row.values
        if name in fields.OPTIONS or name.startswith("workload.")
    }
    if reserved := [name for name in options if name not in fields.OPTIONS and name in fields.FIELDS]:
        raise InputError(
            f"workload.{reserved[0]} has the name of a field of bench",
            where=row.place(f"workload.{reserved[0]}"),
            fix=f"name the column {reserved[0]}",
        )
    if (length := row.read("seq_len", fields.count)) is not None:
        options["seq_len"] = length
    of_cell = _of_cell(row)
    cell = Cell(
        backend=_required(row, "backend", _backend),
        workload=_required(row, "workload", fields.text),
        options=options,
        num_processes=_required(row, "num_processes", fields.count),
        mixed_precision=row.read("mixed_precision", fields.precision),
        memory_limit_bytes=of_cell.memory_limit_bytes,
        train=of_cell.train,
        measure=of_cell.measure,
    )
    attempt = Attempt(cell=cell, batch_per_rank=_required(row, "batch", fields.count))
    settings = {**cell.model_dump(mode="json"), **cell.train.model_dump(mode="json")}
    settings |= cell.measure.model_dump(mode="json")
    stated = {name: settings[name] for name in fields.OF_CELL if name in row.values}
    return Result(
        attempt=attempt,
        axes={"backend": cell.backend, **options, **stated},
        outcome=_outcome(row, attempt),
        machine=_machine(row, devices),
        isolation=None,
        started_at=at,
        wall_s=0.0,
        stated=tuple(stated),
        notes=row.notes,
    )


REQUIRED = ("backend", "workload", "num_processes", "batch")


def _missing(row: Given, name: str) -> InputError | None:
    if name in row.values or (name == "batch" and "global_batch" in row.values):  # then only the ranks are missing
        return None
    fix = (
        f"add a column; if it is the same for all rows, add {name}=... to the command line, or a line '# {name}: ...'"
        " above the column names of a csv file"
    )
    if name == "batch" and "num_processes" in row.values:
        fix += "; global_batch does as well"
    if close := get_close_matches(name, row.notes, n=1):
        fix = f"if {close[0]!r} is this column, add --map {name}={close[0]}"
    return row.wrong(name, "is required", fix=fix)


def _backend(value: JsonValue) -> str:
    """Any valid name: imported figures may come from a backend that bench does not have."""
    name = names.backend_of(value) if isinstance(value, str) and not re.search(r"[/\\]", value) else ""
    if not name or len(name) > 100:
        raise fields.Expected(NAME_IN_WORDS)
    return name


def _of_cell(row: Given) -> _OfCell:
    sections: dict[str, type[Frozen]] = {"train": Train, "measure": Measure}
    data: dict[str, JsonValue] = {
        section: {
            name: row.read(name, partial(fields.setting, name)) for name in model.model_fields if name in row.values
        }
        for section, model in sections.items()
    }
    data["memory_limit_bytes"] = row.read("memory_limit_bytes", lambda value: round(fields.quantity(value, 1.0)))
    return validate(_OfCell, data, lambda key: (key[-1:], row.place(str(key[-1]))))


def _machine(row: Given, most_processes: int) -> Machine:
    devices = row.read("devices", fields.count) or most_processes
    device = row.read("device", _one_of(get_args(Device))) or "cuda"
    accelerator = row.read("accelerator", fields.text)
    capacity = _bytes(row, "capacity")
    return Machine(
        hardware=StatedHardware(device=cast(Device, device), devices=devices, memory_bytes=capacity),
        accelerators=(accelerator,) * devices if accelerator else (),
        driver=row.read("driver", fields.text),
        cpu=row.read("cpu", fields.text),
        system=None,
        python=row.read("python", fields.text),
        libraries={name: version for name in LIBRARIES if (version := row.read(name, fields.text))},
        bench=None,
        git_commit=row.read("git_commit", fields.text),
        git_dirty=None,
        allocator=row.read("allocator", fields.text),
        threads={},
    )


def _outcome(row: Given, attempt: Attempt) -> Outcome:
    kind = row.read("outcome", _one_of((*get_args(OutcomeKind), INVALID.word))) or "ok"
    source = row.read("source", fields.text) or Path(re.sub(r"[:\[]\d+\]?$", "", row.where)).name
    figures = [name for name in row.values if name in RESULTS]
    if kind not in ("ok", "reported", "scripted", INVALID.word) and (
        wrong := [name for name in figures if row.place(name) == row.where]
    ):
        raise row.wrong(wrong[0], f"{kind!r} cannot have figures", fix="leave it empty")
    reason = row.read("reason", fields.text) or f"from elsewhere: {source}"
    match kind:
        case "oom":
            return Oom(rank=None, phase=None, reason=reason)
        case "hang":
            return Hang(reason=reason)
        case "failed":
            return Failed(rank=None, phase=None, reason=reason)
        case "skipped":
            return Skipped(reason=reason)
        case INVALID.word:
            return Failed(rank=None, phase=None, reason=f"invalid {reason}")
    return Reported(source=source, **stated_figures(row, attempt))


def stated_figures(row: Given, attempt: Attempt) -> dict[str, Any]:
    """The fields of `Stated`, checked against each other.

    Raises:
        InputError: figures contradict each other.
    """
    step_times_s = _steps(row, attempt.cell.num_processes)
    samples_per_s = row.read("samples_per_s", lambda value: fields.quantity(value, 1.0))
    step_s = max(step_times_s, default=None) or (attempt.batch_global / samples_per_s if samples_per_s else None)
    capacity, peak = _bytes(row, "capacity"), _bytes(row, "peak")
    share = row.read("capacity_share", fields.share)
    phases_s = {
        name: mean_s for name in STORED_PHASES if (mean_s := _seconds(row, name, zero=name != "total")) is not None
    }
    if not row.own:
        contradictions.of_steps(row, attempt)
        if step_times_s and samples_per_s:
            contradictions.of_throughput(row, attempt, max(step_times_s), samples_per_s)
        for name in (name for name in MEMORIES if name != "capacity"):
            contradictions.of_memory(row, name, _bytes(row, name), capacity, share)
        if step_s:
            contradictions.of_phases(row, phases_s, step_s)
    figures = {name: _figure(row, figure) for name, figure in STATED.items()}
    if share is None and peak and capacity:
        figures[CAPACITY_SHARE.name] = peak / capacity
    return {
        "step_time_s_per_rank": step_times_s,
        "samples_per_s_global": samples_per_s,
        "phase_times_s": phases_s,
        "figures": {name: value for name, value in figures.items() if value is not None},
    }


def _figure(row: Given, figure: Figure) -> float | None:
    if figure.kind == "bytes":
        return _bytes(row, figure.short.removesuffix("_bytes"))
    return row.read(figure.short, fields.share)


def _steps(row: Given, num_processes: int) -> tuple[float, ...]:
    """The step time of each rank if the row gives them; otherwise its single step time."""

    def per_rank(value: JsonValue) -> list[float]:
        if not isinstance(value, list) or len(value) != num_processes:
            raise fields.Expected(f"a list of {num_processes} times in seconds, one per rank")
        return [fields.quantity(time, 1.0) for time in value]

    one, many = _seconds(row, "step_time"), row.read("step_time_s_per_rank", per_rank)
    if one and many and abs(one / max(many) - 1) > contradictions.ROUNDING:
        raise row.wrong(
            "step_time_s_per_rank",
            f"{max(many):g} s for the slowest rank is impossible: the step takes {one:g} s",
            fix="ranks wait for each other; if the source contradicts itself, leave one of the two out",
        )
    return tuple(many) if many else () if one is None else (one,)


def _seconds(row: Given, name: str, *, zero: bool = False) -> float | None:
    return _in_base_units(row, name, SECONDS, names.SECONDS, zero=zero)


def _bytes(row: Given, name: str) -> int | None:
    size = _in_base_units(row, name, BYTES, names.BYTES)
    return None if size is None else max(1, round(size))


def _in_base_units(
    row: Given, name: str, endings: Sequence[str], units: Mapping[str, float], *, zero: bool = False
) -> float | None:
    written = [unit for unit in endings if f"{name}_{unit}" in row.values]
    if len(written) > 1:
        both = " and ".join(f"{name}_{unit}" for unit in written)
        raise InputError(
            f"{both} give the same figure twice", where=row.place(f"{name}_{written[1]}"), fix="leave one out"
        )
    if not written:
        return None
    scale = units[written[0]]
    return row.read(f"{name}_{written[0]}", lambda value: fields.quantity(value, scale, units=units, zero=zero))


def _one_of(allowed: Sequence[str]) -> Callable[[JsonValue], str]:
    def read(value: JsonValue) -> str:
        if value not in allowed:
            raise fields.Expected(", ".join(allowed))
        return str(value)

    return read


def _required(row: Given, name: str, read: Callable[[JsonValue], Value]) -> Value:
    value = row.read(name, read)
    assert value is not None, name  # see REQUIRED
    return value
