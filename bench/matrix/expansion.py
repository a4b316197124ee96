"""Matrix -> cells. Pure: no disk, no clock, no torch."""

from collections.abc import Sequence
from typing import TypeVar, cast

from pydantic import BaseModel, JsonValue
from pydantic_core import PydanticSerializationError

from bench import backends
from bench.backends import BACKENDS
from bench.errors import InputError
from bench.matrix import accelerate_file, auto, script, step_batches
from bench.matrix.auto import memory_limit, num_processes, resolve_preset
from bench.matrix.combinations import (
    Combination,
    Value,
    backend_of,
    batch_of,
    batches_of,
    check_count,
    combinations,
)
from bench.matrix.matrix_file import Launch, Matrix, Values, as_list
from bench.matrix.validation import validate
from bench.matrix.yaml_file import Key, canonical, place_of, refusal, show
from bench.records.base import not_finite
from bench.records.cell import Cell, Measure, Train
from bench.records.machine import Hardware
from bench.records.plan import COST_OPTIONS, CellPlan, RunPlan
from bench.records.precision import MixedPrecision
from bench.records.script import NO_BACKEND
from bench.units import counted
from bench.workloads import Definition

MAX_CHARACTERS = 2**26
"""Limit of all cells' settings together. More is a mistake, and would take minutes."""

Model = TypeVar("Model", bound=BaseModel)


def expand(matrix: Matrix, hardware: Hardware) -> list[CellPlan]:
    """The cells of a matrix in the order of the file, each with its batches. Pure.

    The rules are GitHub's ("Running variations of jobs in a workflow"): every combination of the axes, except those
    that match an ``exclude``. An ``include`` is added to each combination whose axis values it would not overwrite; if
    there is none, it becomes a new combination.

    Raises:
        InputError: the workload rejects a value.
    """
    _check_ranks(matrix, hardware)
    workload = script.workload_of(matrix)
    columns = ["backend", *matrix.matrix, *(name for entry in matrix.include for name in entry)]
    plans: dict[str, tuple[Cell, Values, set[int | str]]] = {}
    points = size = 0
    combined = combinations(matrix)
    measure = Measure.model_validate(matrix.measure.model_dump(exclude={"launches"}))
    # One memory limit for the whole matrix: a cell is the same whether its batch is given or searched for.
    searches = any("probe" in as_list(batch_of(matrix, combination).value) for combination in combined)
    for combination in combined:
        cell, resolved = _cell(matrix, workload, combination, hardware, measure, searches=searches)
        batches = [one for one in batches_of(matrix, combination) if isinstance(one, str) or cell.divides(one)]
        if not batches:
            continue
        points += len(batches)
        check_count(matrix, points)
        axes = {name: resolved[name] for name in dict.fromkeys(columns) if name != "batch" and name in resolved}
        content = canonical(cell.model_dump(mode="json"))
        size += len(content)
        if size > MAX_CHARACTERS:
            where = place_of(matrix.places, ("matrix",))
            raise InputError(
                f"the settings of all cells together have more than {MAX_CHARACTERS} characters",
                where=where,
                fix="shorten lists and texts",
            )
        plans.setdefault(content, (cell, axes, set()))[2].update(batches)
    result = [
        CellPlan(
            cell=cell,
            batches=tuple(sorted(batch for batch in chosen if isinstance(batch, int))),
            search="probe" in chosen,
            axes=axes,
            launches=1 if matrix.measure.launches == "auto" else matrix.measure.launches,
        )
        for cell, axes, chosen in plans.values()
    ]
    if not result:
        problem = f"{'; '.join(left_out(matrix, hardware))}: nothing is left"
        raise refusal(problem, matrix.places, ("matrix", "batch"))
    if len({plan.cell.id for plan in result}) < len(result):
        raise InputError("two different cells have the same id", fix="change measure.seed or split the matrix")
    return result


def left_out(matrix: Matrix, hardware: Hardware) -> tuple[str, ...]:
    """One sentence on the batches that do not divide their global batch, which `expand` leaves out; empty if none."""
    found: dict[tuple[int, int], list[int]] = {}
    for combination in combinations(matrix):
        whole = combination.get("global_batch", Value(matrix.train.global_batch, ())).value
        ranks = _ranks(matrix, backend_of(matrix, combination), hardware)
        for batch in batches_of(matrix, combination):
            if isinstance(batch, int) and isinstance(whole, int) and whole // ranks % batch:
                found.setdefault((whole, ranks), []).append(batch)
    each = [
        f"batch {', '.join(map(str, batches))}, which {'does' if len(batches) == 1 else 'do'} not divide the"
        f" {whole // ranks} samples of a rank ({whole} / {counted(ranks, 'rank')})"
        for (whole, ranks), batches in ((shared, dict.fromkeys(batches)) for shared, batches in found.items())
    ]
    return (f"left out: {'; '.join(each)}",) if each else ()


def run_plan(matrix: Matrix, every: Sequence[CellPlan]) -> RunPlan:
    """What a run keeps of its matrix; ``every`` as `expand` made it."""
    return RunPlan(
        matrix=matrix.name,
        cells=tuple(every),
        claims=tuple(matrix.claims),
        choices=tuple(matrix.choices),
        cost_options=script.workload_of(matrix).cost_options or COST_OPTIONS,
        workload_folder=matrix.workload_folder,
    )


def _cell(
    matrix: Matrix,
    workload: Definition,
    combination: Combination,
    hardware: Hardware,
    measure: Measure,
    *,
    searches: bool,
) -> tuple[Cell, Values]:
    """The cell of one combination, and all values that may be an axis."""
    backend = backend_of(matrix, combination)
    requested = combination.get("preset", Value(matrix.workload.preset, ("workload", "preset")))
    preset, preset_fields = resolve_preset(matrix, workload, requested, hardware)
    options = {name: Value(value, requested.key) for name, value in preset_fields.items()}
    options |= {name: Value(value, ("workload", name)) for name, value in matrix.workload.options.items()}
    options |= {name: value for name, value in combination.items() if name in workload.Config.model_fields}
    if "preset" in workload.Config.model_fields:
        options["preset"] = Value(preset, requested.key)
    train = {name: Value(value, ("train", name)) for name, value in matrix.train.model_dump().items()}
    accelerate = matrix.configs.get(backend)
    if accelerate is not None:
        train |= {name: Value(value, ("train", name)) for name, value in backends.own_settings(accelerate).items()}
        train |= step_batches.of_config(matrix, backend, accelerate, combination)
    train |= {name: value for name, value in combination.items() if name in train and name not in options}
    if measure.count_tensors and measure.warmup_steps < 2:
        raise refusal(
            f"{measure.warmup_steps} cannot be used with measure.count_tensors: DDP makes its buckets anew in step 2",
            matrix.places,
            ("measure", "warmup_steps"),
            allowed="2 or more",
        )
    trained = _validate(matrix, Train, train, "train")
    ranks = _ranks(matrix, backend, hardware)
    step_batches.check(matrix, trained, train, ranks, searches=searches)
    script.check_values(matrix, options)
    config = _validate(matrix, workload.Config, options, "workload")
    launch = {name: Value(value, ("launch", name)) for name, value in matrix.launch.model_dump(mode="json").items()}
    launch["mixed_precision"] = combination.get(
        "mixed_precision", Value(auto.precision(matrix.launch, hardware), ("launch", "mixed_precision"))
    )
    precision: str = _validate(matrix, Launch, launch, "launch").mixed_precision
    if accelerate is not None and matrix.command is not None:
        precision = accelerate_file.written_precision(accelerate)
    elif accelerate is not None:
        precision = _config_precision(matrix, backend, accelerate, combination)
    stored = _json(matrix, config, options)
    cell = Cell(
        backend=backend,
        accelerate=accelerate,
        workload=script.name_of(matrix),
        options=stored,
        num_processes=ranks,
        num_nodes=matrix.launch.nodes if ranks > 1 else 1,
        mixed_precision=precision,
        memory_limit_bytes=memory_limit(matrix, workload, str(preset), searches, hardware),
        train=step_batches.with_script(trained, matrix, stored, options),
        measure=measure,
        script=script.script_of(matrix),
    ).without_idle()
    others = {"preset": preset, "mixed_precision": precision, "backend": backend}
    return cell, {**cell.train_settings, **cell.options, **others}


def _json(matrix: Matrix, config: BaseModel, given: Combination) -> Values:
    """The workload's config as stored and hashed. The defaults of a user's workload may not be JSON values."""
    why = "each field of a workload's Config is stored as JSON"
    try:
        fields: Values = config.model_dump(mode="json")
    except (PydanticSerializationError, UnicodeDecodeError) as error:
        where = place_of(matrix.places, ("workload", "name"))
        raise InputError(f"{error}: {why}", where=where, field="workload") from error
    for name, value in fields.items():
        if isinstance(getattr(config, name), set | frozenset):  # its order is another one in each process
            fields[name] = sorted(cast("list[JsonValue]", value), key=canonical)
        if offender := not_finite(value, name):
            key = given[name].key if name in given else ("workload", name)
            raise InputError(
                f"{offender[1]} is not a JSON value: {why}",
                where=place_of(matrix.places, key),
                field=f"workload.{offender[0]}",
                fix="choose a finite value, or null for none",
            )
    return fields


def _config_precision(matrix: Matrix, backend: str, config: Values, combination: Combination) -> MixedPrecision:
    """The precision of the user's accelerate config, which an axis can only set where it sets none."""
    explicit = matrix.launch.mixed_precision if "mixed_precision" in matrix.launch.model_fields_set else None
    requested = combination.get("mixed_precision")
    precision = backends.own_precision(config, explicit if requested is None else requested.value)  # type: ignore[arg-type]
    if requested is not None and requested.value != precision:
        raise refusal(
            f"{show(requested.value)} cannot be used with {backend}: its own config says {precision}",
            matrix.places,
            requested.key,
            fix=f"exclude it for {backend}, or change its config",
        )
    return precision


def _ranks(matrix: Matrix, backend: str, hardware: Hardware) -> int:
    if (own := script.own_processes(matrix)) is not None:
        return own
    if matrix.command is not None and not script.starts_several(matrix):
        return 1
    if backend == NO_BACKEND:
        return num_processes(matrix.launch, hardware)
    config = matrix.configs.get(backend)
    if matrix.command is not None and config is not None and config.get("distributed_type", "NO") != "NO":
        return num_processes(matrix.launch, hardware)
    chosen = BACKENDS[backend] if config is None else backends.from_accelerate_config(config)
    return 1 if chosen.family == "single" else num_processes(matrix.launch, hardware)


def _check_ranks(matrix: Matrix, hardware: Hardware) -> None:
    """Raises InputError for more ranks than GPUs, and for ranks that the nodes cannot share evenly."""
    nodes = matrix.launch.nodes
    ranks, gpus = num_processes(matrix.launch, hardware), hardware.devices * nodes
    key = ("launch", "num_processes")
    if ranks > gpus > 0:
        machines = "this machine" if nodes == 1 else f"{nodes} such nodes"
        problem = f"{ranks} processes are more than the GPUs of {machines}"
        raise refusal(problem, matrix.places, key, allowed=f"auto, or 1 to {gpus}")
    if nodes == 1:
        return
    if matrix.command is not None and not script.spreads(matrix):
        raise refusal(
            "the command does not say how to start the ranks of one of several nodes",
            matrix.places,
            ("launch", "nodes"),
            allowed=f"1; or more for an observed script with {', '.join(f'{{{name}}}' for name in script.ON_NODES)}",
            fix="see the recipe for several nodes in `bench guide scripts`",
        )
    if ranks % nodes:
        problem = f"{ranks} processes cannot be spread evenly over {nodes} nodes"
        raise refusal(problem, matrix.places, key, allowed=f"auto, or a multiple of {nodes}")


def _validate(matrix: Matrix, model: type[Model], values: Combination, section: str) -> Model:
    def locate(key: Key) -> tuple[Key, str | None]:
        source = values[str(key[0])].key if key and key[0] in values else (section, *key[:1])
        return (*source, *key[1:]), place_of(matrix.places, source)

    return validate(model, {name: value.value for name, value in values.items()}, locate)
