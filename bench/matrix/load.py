"""Loads a matrix: reads the file, the configs that it names and the overrides, and validates them."""

import re
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from pydantic import BaseModel, JsonValue

from bench.backends import (
    BACKENDS,
    from_accelerate_config,
    own_engine,
    own_precision,
    own_settings,
)
from bench.backends.registry import section
from bench.errors import InputError, near_miss
from bench.matrix import accelerate_file, script, step_batches, workload_choice, yaml_file
from bench.matrix.accelerate_file import UserConfig
from bench.matrix.auto import (
    MEASURE_BY_DEVICE,
    asks_for_bf16_weights,
    memory_per_rank,
    num_processes,
    precision,
    resolve_preset,
)
from bench.matrix.combinations import Value, batches_of, combinations
from bench.matrix.matrix_file import (
    DEFAULT_WORKLOAD,
    NAME,
    OWN_AXES,
    Launch,
    Matrix,
    MatrixFile,
    Measuring,
    Values,
    WorkloadChoice,
)
from bench.matrix.validation import check_names, validate
from bench.matrix.yaml_file import Key, Places, canonical, dotted, place_of, refusal, show
from bench.records.base import Device
from bench.records.cell import Measure, Train
from bench.records.machine import Hardware
from bench.records.plan import RESERVED
from bench.units import memory_size
from bench.workloads import Definition

NO_FILE = "{name: probe}"
"""The matrix of `bench probe --backend fsdp`; the options set the rest."""
BUNDLED_TRAIN: Values = {"weights": "bf16"}
"""Of a matrix without a file, for the bundled policy: how it is trained."""


def load(
    path: Path | None,
    *,
    overrides: Sequence[str] = (),
    axes: Sequence[str] = (),
    probed: bool = False,
    hardware: Hardware,
) -> Matrix:
    """Reads and validates a matrix file.

    Args:
        path: None: there is no file, only overrides and axes.
        overrides: ``measure.steps=5``: a dotted field and its value as YAML.
        axes: ``num_cams=1,2``: replaces or adds an axis.
        probed: search over the batch of every cell, and ignore the batches of the file.

    Raises:
        InputError: an error in the file, in a config that it names, or in the overrides.
    """
    where = "command line" if path is None else str(path)
    document = yaml_file.parse(NO_FILE, lambda _: where, where) if path is None else yaml_file.read(path)
    data, places = document.data, document.places
    if not isinstance(data, dict):
        problem = "is empty" if data is None else f"holds {show(data)} at its top level"
        raise InputError(
            problem, where=where, allowed="a mapping with the fields " + ", ".join(MatrixFile.model_fields)
        )
    changed = {_override(data, places, text) for text in overrides}
    changed |= {_override(data, places, text, axis=True) for text in axes}
    chosen, train = data.get("workload", {}), data.get("train", {})
    if path is None and isinstance(chosen, dict) and "name" not in chosen and isinstance(train, dict):
        data["train"] = {**BUNDLED_TRAIN, **train}
    workload_choice.open_config(data, places, overrides)
    if "command" not in data:  # a script says by itself how many batches make a step
        step_batches.refuse(data, places)
    data.setdefault("name", "-".join(path.stem.split()) if path else None)
    places.setdefault(("name",), where)
    measure = data.get("measure", {})
    if isinstance(measure, dict):
        data["measure"] = {**_by_device(data, hardware.device), **measure}
    file = validate(
        MatrixFile, data, lambda key: (key, place_of(places, key)), lambda name: yaml_file.suggest(name, _paths(data))
    )
    folder = path.parent if path else Path()
    file = workload_choice.located(file, folder, place_of(places, ("workload", "name")))
    moot = list(dict.fromkeys(map(show, file.batches()))) if probed else []
    if probed:
        file, changed = file.probed(), {*changed, "batch"}
    matrix = _resolve(file, places, folder, frozenset(name for name in changed if name), hardware)
    _refuse_hidden(matrix, overrides)
    note = f"bench probe searches every cell and ignores the batches of the matrix ({', '.join(moot)})"
    return matrix.model_copy(update={"notes": (*matrix.notes, *([note] if moot else []))})


def _by_device(data: Values, device: Device) -> dict[str, int]:
    """The defaults of a device; a script has no use for those that it does not get."""
    command = data.get("command")
    observed = script.OBSERVED_SETTINGS if not data.get("result") and "{out}" not in str(command) else ()
    return {
        name: n
        for name, n in MEASURE_BY_DEVICE[device].items()
        if command is None or name in observed or f"{{{name}}}" in str(command)
    }


def _override(data: Values, places: Places, text: str, *, axis: bool = False) -> str | None:
    """Applies one override to ``data``, and returns the axis that it sets, if any. Validation reports unknown names."""
    where = f"--axis {text}" if axis else text
    name, equals, written = text.partition("=")
    name = name.strip()
    if not equals or not all(name.split(".")):
        option = "--axis" if axis else "override"
        raise InputError(f"{text!r} has no name or no value", where=option, allowed="name=value")
    key = ("matrix", name) if axis else tuple(name.split("."))
    parsed = yaml_file.parse(f"[{written}]" if axis else written, lambda _: where, where)
    section = data
    for depth, part in enumerate(key[:-1]):
        inner = section.setdefault(part, {})
        if not isinstance(inner, dict):
            problem = f"{dotted(key[: depth + 1])} is {show(inner)}, which has no fields"
            raise InputError(problem, where=where, field=name)
        section = inner
    section[key[-1]] = parsed.data
    for old in [old for old in places if old[: len(key)] == key]:
        del places[old]
    places.update({(*key, *inner): where for inner in parsed.places})
    return key[1] if len(key) == 2 and key[0] == "matrix" else None


def _refuse_hidden(matrix: Matrix, overrides: Sequence[str]) -> None:
    """Raises InputError for an override that no combination uses: the run would not measure what it requests."""
    set_by = {key: text for key, text in matrix.places.items() if 0 < len(key) <= 2 and text in overrides}
    for key, text in set_by.items():
        part, field = key[0], key[-1]
        if part == "probe" and not any("probe" in batches_of(matrix, each) for each in combinations(matrix)):
            fix = "use `bench probe`, or search with --axis batch=probe"
            raise InputError("has no effect: no cell searches its batch", where=text, fix=fix)
        if (part, field) == ("measure", "dataloader_prefetch") and not matrix.measure.dataloader_workers:
            fix = "set measure.dataloader_workers, too"
            raise InputError("has no effect: no worker loads batches ahead", where=text, fix=fix)
        if part not in ("workload", "train", "launch", "defaults"):
            continue
        if part == "defaults" and len(key) == 2 and field not in matrix.defaults:
            raise InputError("has no effect: it follows from global_batch and the batch", where=text)
        given = [str(c[str(field)].key[0]) if field in c else part for c in combinations(matrix)]
        if part not in given:
            value = "…" if text.startswith(f"{part}=") else text.partition("=")[2]
            fixes = {"matrix": f"--axis {field}={value}", "defaults": f"defaults.{field}={value}"}
            fix = f"set {fixes[given[0]]}" if given[0] in fixes else "change it in the file"
            raise InputError(f"has no effect: {field} is set in {', '.join(dict.fromkeys(given))}", where=text, fix=fix)


def _paths(data: Values) -> list[str]:
    """Every dotted path that may appear in a matrix file."""
    chosen = data.get("workload")
    name = chosen.get("name", DEFAULT_WORKLOAD) if isinstance(chosen, dict) else DEFAULT_WORKLOAD
    sections: dict[str, type[BaseModel]] = {
        "launch": Launch,
        "measure": Measuring,
        "train": Train,
        "workload": WorkloadChoice,
    }
    paths = [f"{section}.{field}" for section, model in sections.items() for field in model.model_fields]
    try:
        fields = list(workload_choice.load_workload(str(name), None).Config.model_fields)
    except InputError:
        fields = []
    paths += [f"workload.{field}" for field in fields] + [f"matrix.{field}" for field in OWN_AXES]
    return [*MatrixFile.model_fields, *paths]


def _resolve(file: MatrixFile, places: Places, folder: Path, changed: frozenset[str], hardware: Hardware) -> Matrix:
    """The matrix with its names checked, its accelerate configs read, and its notes."""
    script.check(file, places, hardware.device)
    file = script.without_unused_defaults(file)
    workload = workload_choice.workload_of(file, places)
    _refuse_reserved(file, list(workload.Config.model_fields), places)
    script.check_axes(file, places)
    check_names(file.workload.options, ("workload",), list(workload.Config.model_fields), places)
    names = list(dict.fromkeys([*OWN_AXES, *workload.Config.model_fields, *Train.model_fields]))
    check_names(file.matrix, ("matrix",), names, places, file.fix_for_axis)
    check_names(file.defaults, ("defaults",), names, places, file.fix_for_axis)
    for name, entries in (("exclude", file.exclude), ("include", file.include)):
        for index, entry in enumerate(entries):
            check_names(entry, (name, index), names, places)
    _check_choices(file, places)
    settings = [*names, *Measure.model_fields, "num_processes", "num_nodes", "memory_limit_bytes"]
    for index, claim in enumerate(file.claims):
        for side, given in (("of", claim.of), ("against", claim.against or {}), ("where", claim.where)):
            check_names(given, ("claims", index, side), settings, places)
    configs: dict[str, UserConfig] = {}

    def backend(value: JsonValue, key: Key) -> str:
        return _backend(value, key, folder, configs, places, of_script=file.command is not None)

    def resolved(entry: Values, key: Key) -> Values:
        if "backend" not in entry:
            return entry
        return {**entry, "backend": backend(entry["backend"], (*key, "backend"))}

    axes = dict(file.matrix)
    if "backend" in axes:
        key = ("matrix", "backend")
        axes["backend"] = [backend(v, (*key, i)) for i, v in enumerate(axes["backend"])]
    for name, values in axes.items():
        _unique(values, ("matrix", name), places)
    matrix = Matrix(
        name=file.name,
        workload=file.workload,
        workload_folder=file.workload_folder,
        command=file.command,
        result=file.result,
        units=file.units,
        folder="." if file.command is None else str((folder / file.folder).resolve()),
        matrix=axes,
        defaults=resolved(file.defaults, ("defaults",)),
        exclude=file.exclude,
        include=[resolved(entry, ("include", index)) for index, entry in enumerate(file.include)],
        launch=file.launch,
        slurm=file.slurm,
        measure=file.measure,
        train=file.train,
        probe=file.probe,
        choices=file.choices,
        claims=file.claims,
        configs={name: config.content for name, config in configs.items()},
        config_files={name: config.file for name, config in configs.items()},
        changed=changed,
        places=places,
    )
    told = tuple(note for config in configs.values() for note in config.notes)
    return matrix.model_copy(update={"notes": (*_notes(matrix, workload, hardware), *told)})


def _refuse_reserved(file: MatrixFile, options: Sequence[str], places: Places) -> None:
    """Raises InputError for an option of the workload, or a placeholder of the script, that a report would mix up."""
    of_script = {*file.matrix, *file.defaults, *chain(*file.include)} if file.command is not None else ()
    if not (taken := [name for name in RESERVED if name in (*options, *of_script)]):
        return
    name = taken[0]
    axes = [key for key in places if key[-1:] == (name,) and key[0] in ("matrix", "defaults", "include")]
    words = [("command", index) for index, word in enumerate(file.command or ()) if f"{{{name}}}" in word]
    fix = f"choose another name, such as {name}_id"
    raise refusal(
        f"{name!r} cannot be the name of {'an option' if file.command is None else 'a placeholder'}:"
        " reports use it themselves",
        places,
        [*axes, *words, ("workload", "name")][0],
        fix=f"{fix}, also in the command: {{{name}_id}}" if words else fix,
    )


def _check_choices(file: MatrixFile, places: Places) -> None:
    """Raises InputError unless each of ``choices`` is an axis of the file."""
    axes = list(dict.fromkeys([*file.matrix, *(name for entry in file.include for name in entry)]))
    for index, name in enumerate(file.choices):
        if name not in axes:
            raise refusal(
                f"{name!r} is not an axis of this matrix",
                places,
                ("choices", index),
                allowed=axes,
                fix=near_miss(name, axes),
            )
    _unique(file.choices, ("choices",), places)


def _unique(values: Sequence[JsonValue], key: Key, places: Places) -> None:
    seen: set[str] = set()
    for index, value in enumerate(values):
        if canonical(value) in seen:
            raise refusal(f"{show(value)} is listed twice", places, (*key, index))
        seen.add(canonical(value))


def _as_list(value: JsonValue) -> str | None:
    """A fix for ``backend: ddp, fsdp``, which YAML reads as one text."""
    return f"write a list: [{value}]" if isinstance(value, str) and "," in value else None


def _backend(
    value: JsonValue, key: Key, folder: Path, configs: dict[str, UserConfig], places: Places, *, of_script: bool
) -> str:
    """The backend's name. A user's config is read into ``configs``."""
    where = place_of(places, key)
    if isinstance(value, str) and (value in BACKENDS or value in configs):
        return value
    if not isinstance(value, dict) or not all(isinstance(value.get(part), str) for part in ("name", "config_file")):
        allowed = [*BACKENDS, *configs, "or {name: my_own, config_file: accelerate.yaml}"]
        fix = _as_list(value) or near_miss(value, [*BACKENDS, *configs])
        raise refusal(f"{show(value)} is not a backend", places, key, allowed=allowed, fix=fix)
    check_names(value, key, ("name", "config_file"), places)
    name, config_file = str(value["name"]), str(value["config_file"])
    if name in BACKENDS or not re.fullmatch(NAME, name) or len(name) > 100:
        raise InputError(
            f"{name!r} cannot name a backend of your own",
            where=where,
            field=dotted((*key, "name")),
            allowed="letters, digits, '.', '_' and '-', and not the name of a built-in backend",
        )
    path = folder / config_file
    read = accelerate_file.read(path, where, of_script=of_script)
    if configs.setdefault(name, read).content != read.content:
        raise InputError(f"{name!r} names two different configs", where=where, field=dotted((*key, "name")))
    return name


def _notes(matrix: Matrix, workload: Definition, hardware: Hardware) -> tuple[str, ...]:
    notes = []
    preset, _ = resolve_preset(matrix, workload, Value(matrix.workload.preset, ("workload", "preset")), hardware)
    if preset != matrix.workload.preset and "preset" not in {**matrix.matrix, **matrix.defaults}:
        memory = memory_size(memory_per_rank(matrix, hardware))
        notes.append(f"preset: auto chose {preset!r} for {hardware.device} with {memory} per rank")
    stated = "mixed_precision" in matrix.launch.model_fields_set or bool(matrix.values_of("mixed_precision"))
    if not stated and precision(matrix.launch, hardware) == "no" and asks_for_bf16_weights(matrix):
        notes.append(
            "weights: bf16 has no effect, because launch.mixed_precision is 'no' by default on a device without bf16"
            " instructions; launch.mixed_precision=bf16 measures in bf16"
        )
    ranks = num_processes(matrix.launch, hardware)
    for name, content in matrix.configs.items():
        if from_accelerate_config(content).family == "single":
            if ranks != 1:
                notes.append(f"{name}: distributed_type NO runs one process and ignores launch.num_processes {ranks}")
        elif content.get("num_processes", ranks) != ranks:
            notes.append(f"{name}: launch.num_processes {ranks} replaces its own {content['num_processes']}")
        notes += (_overridden if matrix.command is None else step_batches.notes)(matrix, name, content)
    return tuple(notes)


def _overridden(matrix: Matrix, name: str, content: Values) -> Iterator[str]:
    """Settings that the matrix states for all cells, and an own config decides otherwise."""
    launch, train = matrix.launch, matrix.train
    requested = launch.mixed_precision if "mixed_precision" in launch.model_fields_set else None
    if requested and (precision := own_precision(content, requested)) != requested:
        yield f"{name}: its own mixed_precision {precision} overrides launch.mixed_precision {requested}"
    for field, value in own_settings(content).items():
        if field in train.model_fields_set and (stated := getattr(train, field)) != value:
            yield f"{name}: its own config sets {field} {value}, and not train.{field} {stated}"
    yield from step_batches.notes(matrix, name, content)
    engine = own_engine(content)
    if section(engine, "bf16").get("enabled") == "auto" and own_precision(content, requested) == "no":
        fix = "set launch.mixed_precision: bf16 for bf16"
        yield f"{name}: its bf16.enabled is auto, and nothing states a precision, so it runs in fp32: {fix}"
    for field in ("train_batch_size", "train_micro_batch_size_per_gpu"):
        if isinstance(engine.get(field), int):
            yield f"{name}: the batch of each cell replaces its own {field} {engine[field]}"
