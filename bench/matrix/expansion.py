"""Matrix -> cells. Pure: no disk, no clock, no torch."""

import itertools
import math
from collections.abc import Sequence
from typing import TypeVar

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError

from bench import backends
from bench import workload as workloads
from bench.backends import BACKENDS
from bench.errors import InputError
from bench.matrix import accelerate_file, required
from bench.matrix.auto import Value, memory_limit, num_processes, resolve_preset
from bench.matrix.file import Batch, CellPlan, Launch, Matrix, Values, as_list
from bench.matrix.required import Combination
from bench.matrix.select import narrow
from bench.matrix.validation import known, validate
from bench.matrix.yaml_file import Key, canonical, dotted, place_of, show
from bench.records.base import not_finite
from bench.records.cell import Cell, MixedPrecision, Train
from bench.records.machine import Hardware
from bench.workload import Workload

MAX_COMBINATIONS, MAX_ENTRIES, MAX_CHARACTERS = 10_000, 1_000, 2**26
"""Of the axes; of include and of exclude; of all cells' settings together. More is a slip, and would take minutes."""

Model = TypeVar("Model", bound=BaseModel)


def expand(
    matrix: Matrix,
    hardware: Hardware,
    *,
    backend: str | None = None,
    select: Sequence[str] = (),
    exclude: Sequence[str] = (),
) -> list[CellPlan]:
    """The cells of a matrix in the order of the file, each with its batches. Pure.

    The rules are GitHub's ("Running variations of jobs in a workflow"): every combination of the axes, less those that
    match an ``exclude``; an ``include`` extends the combinations of the axes whose values it does not overwrite,
    and adds a combination when there is none.

    Args:
        backend: ``fsdp,zero2``: keeps the cells of these backends.
        select: ``backend=fsdp,zero2``: keeps what has one of these values.
        exclude: ``backend=fsdp num_cams=4``: drops what meets all of these conditions.

    Raises:
        InputError: a value that the workload refuses, or a filter that matches nothing.
    """
    if num_processes(matrix.launch, hardware) > hardware.devices > 0:
        raise InputError(
            f"{num_processes(matrix.launch, hardware)} processes are more than there are GPUs",
            where=place_of(matrix.places, ("launch", "num_processes")),
            field="launch.num_processes",
            allowed=f"auto, or 1 to {hardware.devices}",
        )
    workload = workloads.load(matrix.workload.name)
    columns = ["backend", *matrix.matrix, *(name for entry in matrix.include for name in entry)]
    plans: dict[str, tuple[Cell, Values, set[Batch]]] = {}
    points = size = 0
    combined = combinations(matrix)
    # One rule for the whole matrix: a cell is the same one whether a batch of it is named or searched for.
    searches = any("probe" in as_list(required.batch_of(matrix, combination).value) for combination in combined)
    for combination in combined:
        cell, resolved = _cell(matrix, workload, combination, hardware, searches=searches)
        found = required.batches(matrix, combination)
        points += len(found)
        _bound(matrix, points)
        axes = {name: resolved[name] for name in dict.fromkeys(columns) if name != "batch" and name in resolved}
        content = canonical(cell.model_dump(mode="json"))
        size += len(content)
        if size > MAX_CHARACTERS:
            where = place_of(matrix.places, ("matrix",))
            raise InputError("the settings of all its cells are too large", where=where, fix="shorten lists and texts")
        plans.setdefault(content, (cell, axes, set()))[2].update(found)
    result = narrow(
        [
            CellPlan(cell=cell, batches=tuple(sorted(batches, key=lambda batch: (batch == "probe", batch))), axes=axes)
            for cell, axes, batches in plans.values()
        ],
        backend,
        select,
        exclude,
    )
    if len({plan.cell.id for plan in result}) < len(result):
        raise InputError("two different cells come to the same id", fix="change measure.seed or split the matrix")
    return result


def combinations(matrix: Matrix) -> list[Combination]:
    """GitHub's rules; see `expand`."""
    axes = [
        [(name, Value(value, ("matrix", name, index))) for index, value in enumerate(values)]
        for name, values in matrix.matrix.items()
    ]
    _bound(matrix, math.prod(len(values) for values in axes))
    for section, entries in (("exclude", matrix.exclude), ("include", matrix.include)):
        _bound(matrix, len(entries), "entries", MAX_ENTRIES, section)
    originals = [dict(pairs) for pairs in itertools.product(*axes)] if axes else []
    kept = _without_excluded(matrix, originals)
    extended = [dict(original) for original in kept]
    added: list[Combination] = []
    for index, entry in enumerate(matrix.include):
        values = {name: Value(value, ("include", index, name)) for name, value in entry.items()}
        matching = [
            result
            for result, original in zip(extended, kept, strict=True)
            if all(name not in original or original[name].text == value.text for name, value in values.items())
        ]
        for result in matching:
            result.update(values)
        if not matching:
            added.append(values)
    if not extended and not added:
        problem = "every combination is excluded" if originals else "there is nothing to measure"
        fix = None if originals else "list at least one backend: backend: [ddp]"
        where = place_of(matrix.places, ("exclude" if originals else "matrix",))
        raise InputError(problem, where=where, field="exclude" if originals else "matrix", fix=fix)
    defaults = {name: Value(value, ("defaults", name)) for name, value in matrix.defaults.items()}
    return [{**defaults, **combination} for combination in [*extended, *added]]


def _without_excluded(matrix: Matrix, originals: list[Combination]) -> list[Combination]:
    kept = originals
    for index, entry in enumerate(matrix.exclude):
        where, field = place_of(matrix.places, ("exclude", index)), f"exclude[{index}]"
        if not entry:
            raise InputError("an empty entry would exclude everything", where=where, field=field)
        known(entry, ("exclude", index), list(matrix.matrix), matrix.places)
        values = {name: canonical(value) for name, value in entry.items()}
        absent = matrix.absent(entry)
        if absent and not matrix.changed.intersection(absent):
            raise InputError(
                f"{show(entry)} matches nothing: {absent[0]} is never {show(entry[absent[0]])}",
                where=where,
                field=field,
                allowed=[show(value) for value in matrix.matrix[absent[0]]],
            )
        kept = [c for c in kept if any(c[name].text != value for name, value in values.items())]
    return kept


def _bound(
    matrix: Matrix, size: int, what: str = "combinations", most: int = MAX_COMBINATIONS, section: str = "matrix"
) -> None:
    if size > most:
        raise InputError(
            f"{size:,} {what} are too many",
            where=place_of(matrix.places, (section,)),
            field=section,
            allowed=f"up to {most:,}",
        )


def _cell(
    matrix: Matrix, workload: type[Workload], combination: Combination, hardware: Hardware, *, searches: bool
) -> tuple[Cell, Values]:
    """The cell of one combination, and every value that an axis may show."""
    backend = required.backend_of(matrix, combination)
    asked = combination.get("preset", Value(matrix.workload.preset, ("workload", "preset")))
    preset, preset_fields = resolve_preset(matrix, workload, asked, hardware)
    options = {name: Value(value, asked.key) for name, value in preset_fields.items()}
    options |= {name: Value(value, ("workload", name)) for name, value in matrix.workload.options.items()}
    options |= {name: value for name, value in combination.items() if name in workload.Config.model_fields}
    if "preset" in workload.Config.model_fields:
        options["preset"] = Value(preset, asked.key)
    train = {name: Value(value, ("train", name)) for name, value in matrix.train.model_dump().items()}
    train |= {name: value for name, value in combination.items() if name in train and name not in options}
    config = _validate(matrix, workload.Config, options, "workload")
    accelerate = matrix.configs.get(backend)
    launch = {name: Value(value, ("launch", name)) for name, value in matrix.launch.model_dump(mode="json").items()}
    launch |= {name: value for name, value in combination.items() if name == "mixed_precision"}
    precision = _validate(matrix, Launch, launch, "launch").mixed_precision
    if accelerate is not None:
        precision = _own_precision(matrix, backend, accelerate, combination)
    cell = Cell(
        backend=backend,
        accelerate=accelerate,
        workload=matrix.workload.name,
        options=_json(matrix, config, options),
        num_processes=_ranks(matrix, backend, hardware),
        mixed_precision=precision,
        memory_limit_bytes=memory_limit(matrix, workload, str(preset), searches, hardware),
        train=_validate(matrix, Train, train, "train"),
        measure=matrix.measure,
    )
    own = {"preset": preset, "mixed_precision": precision, "backend": backend}
    return cell, {**cell.train.model_dump(mode="json"), **cell.options, **own}


def _json(matrix: Matrix, config: BaseModel, given: Combination) -> Values:
    """The workload's config as it is stored and hashed; a workload of the user's may have defaults that JSON lacks."""
    why = "each field of a workload's Config is stored as JSON"
    try:
        found: Values = config.model_dump(mode="json")
    except PydanticSerializationError as error:
        where = place_of(matrix.places, ("workload", "name"))
        raise InputError(f"{error}: {why}", where=where, field="workload") from error
    for name, value in found.items():
        if wrong := not_finite(value, name):
            key = given[name].key if name in given else ("workload", name)
            raise InputError(
                f"{wrong[1]} is no JSON value: {why}",
                where=place_of(matrix.places, key),
                field=f"workload.{wrong[0]}",
                fix="choose a finite value, or null for none",
            )
    return found


def _own_precision(matrix: Matrix, backend: str, config: Values, combination: Combination) -> MixedPrecision:
    """That of the user's own accelerate config, which no axis can change."""
    own = accelerate_file.mixed_precision(config)
    asked = combination.get("mixed_precision")
    if asked is not None and asked.value != own:
        raise InputError(
            f"{show(asked.value)} cannot be used with {backend}: its own config says {own}",
            where=place_of(matrix.places, asked.key),
            field=dotted(asked.key),
            fix=f"exclude it for {backend}, or change its config",
        )
    return own


def _ranks(matrix: Matrix, backend: str, hardware: Hardware) -> int:
    own = matrix.configs.get(backend)
    chosen = BACKENDS[backend] if own is None else backends.own(own)
    return 1 if chosen.family == "single" else num_processes(matrix.launch, hardware)


def _validate(matrix: Matrix, model: type[Model], values: Combination, section: str) -> Model:
    def locate(key: Key) -> tuple[Key, str | None]:
        source = values[str(key[0])].key if key and key[0] in values else (section, *key[:1])
        return (*source, *key[1:]), place_of(matrix.places, source)

    return validate(model, {name: value.value for name, value in values.items()}, locate)
