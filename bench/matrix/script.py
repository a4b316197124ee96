"""A script in the place of a workload: its placeholders are the fields that a matrix may vary."""

import re
import shutil
import sys
import warnings
from functools import cache
from pathlib import Path, PurePath
from typing import Any

from pydantic import BaseModel, ConfigDict, JsonValue, create_model

from bench import workloads
from bench.errors import near_miss
from bench.matrix.combinations import Combination
from bench.matrix.matrix_file import Matrix, MatrixFile
from bench.matrix.yaml_file import Key, Places, refusal, show
from bench.records.base import Device
from bench.records.cell import Measure
from bench.records.script import CALLED_MICRO_BATCHES, IN_LOG, MICRO_BATCHES, Script, placeholders
from bench.records.stated import FIGURES
from bench.workloads import Definition, Workload

CONFIG, GLOBAL = "accelerate_config", "global_batch"
OF_BENCH: dict[str, tuple[str, ...]] = {
    "backend": ("backend", CONFIG),
    "batch": ("batch", "batch_global"),
    "mixed_precision": ("mixed_precision", CONFIG),
    "num_processes": ("num_processes", "ranks_per_node", "batch_global", CONFIG),
    **{name: (name,) for name in Measure.model_fields},
}
"""The settings that bench has a value for, and the placeholders that hand each of them to a script."""
ON_NODES = ("num_nodes", "ranks_per_node", "node_rank", "main_address", "main_port")
"""Placeholders with which a command starts the ranks of one of several nodes. On one, they have values too."""
OBSERVED_SETTINGS = ("num_processes", "warmup_steps", "steps", "phase_steps")
"""Settings that apply to an observed script without a placeholder: bench counts its steps, and checks its processes."""
PROVIDED = (CONFIG, "batch_global", "out", "output_dir", *ON_NODES, *OF_BENCH)
"""Every placeholder that is no axis of the user's own."""
_TAKEN = re.compile(rf"_|(?:{'|'.join(name for name in dir(BaseModel) if name.startswith('model_'))})$")
"""Names that no field of a pydantic model can have."""


def script_of(file: MatrixFile) -> Script | None:
    """The script of a matrix; None where it has a workload."""
    if file.command is None:
        return None
    return Script(command=tuple(file.command), result=file.result, units=tuple(file.units))


def workload_of(file: MatrixFile) -> Definition:
    """What a matrix trains: its workload, or its script in the form of one."""
    script = script_of(file)
    if script is None:
        return workloads.load(file.workload.name)
    return _as_workload(script.placeholders.difference(_provided(file, script)), script.units)


def name_of(file: MatrixFile) -> str:
    """The workload's name in results: of a script, its file or module."""
    if file.command is None:
        return file.workload.name
    named = [word for word in file.command if PurePath(word).suffix in (".py", ".sh")]
    modules = [after for word, after in zip(file.command, file.command[1:], strict=False) if word == "-m"]
    return PurePath([*named, *modules, file.command[0]][0]).name


def starts_several(file: MatrixFile) -> bool:
    """Whether a script is told how many processes to start. Else it is one, and its result must say so."""
    script = script_of(file)
    return script is not None and script.uses(*OF_BENCH["num_processes"])


def spreads(file: MatrixFile) -> bool:
    """Whether bench can start a script on several nodes: each is told which it is, and where they meet."""
    script = script_of(file)
    return script is not None and script.is_observed and script.placeholders >= {"node_rank", "main_address"}


def own_processes(file: MatrixFile) -> int | None:
    """How many processes an observed script starts by itself, as far as the matrix says: a run checks it."""
    script = script_of(file)
    if script is None or not script.is_observed or script.uses(*OF_BENCH["num_processes"]):
        return None
    stated = file.launch.num_processes
    return (script.num_processes or 1) if stated == "auto" else stated


def _provided(file: MatrixFile, script: Script) -> tuple[str, ...]:
    """The placeholders that bench fills in by itself. With a global batch, micro-batches of a step are one."""
    return (*PROVIDED, *(script.step_placeholders if file.values_of(GLOBAL) else ()))


@cache
def _as_workload(names: frozenset[str], units: tuple[str, ...]) -> Definition:
    fields: dict[str, Any] = dict.fromkeys(sorted(names), (JsonValue, ...))
    with warnings.catch_warnings(action="ignore"):  # about fields such as {copy}, which a model has as a method
        config = create_model("Config", __config__=ConfigDict(frozen=True, extra="forbid"), **fields)
    return Definition(
        Config=config,
        presets={},
        auto_preset=None,
        cpu_memory_limits={},
        parameter_counts=None,
        units=units,
        create=_builds_its_own_model,
    )


def _builds_its_own_model(_: BaseModel) -> Workload:
    raise TypeError("a script builds its model itself")


def check(file: MatrixFile, places: Places, device: Device) -> None:
    """Raises InputError if a script would not get what the matrix sets, or could not report its figures."""
    script = script_of(file)
    if script is None:
        for name in ("result", "units", "folder"):
            if name in file.model_fields_set:
                raise refusal(f"{name} belongs to a script, and there is no command", places, (name,))
        return
    if key := _first(places, "workload"):
        raise refusal("a matrix has a workload or a command, not both", places, key, fix="leave one out")
    _check_words(file, script, places)
    _check_result(script, places)
    _check_settings(file, script, places)
    if device == "cuda" and file.launch.memory_limit != "auto":
        raise refusal(
            "bench cannot limit the GPU memory of a script", places, ("launch", "memory_limit"), fix="leave it out"
        )


def axes_of(script: Script) -> list[str]:
    """The names that an axis may have."""
    of_bench = [name for name in ("backend", "batch", "mixed_precision") if script.uses(*OF_BENCH[name])]
    of_bench += [GLOBAL] if script.step_placeholders else []
    return [*of_bench, *sorted(script.placeholders.difference(PROVIDED))]


def without_unused_defaults(file: MatrixFile) -> MatrixFile:
    """``file`` without a default for the micro-batches of a step, where an axis gives every combination a global batch:
    they follow from it."""
    script = script_of(file)
    if script is None or file.include or None in file.matrix.get(GLOBAL, [None]):
        return file
    kept = {name: value for name, value in file.defaults.items() if name not in script.step_placeholders}
    return file.model_copy(update={"defaults": kept})


def check_axes(file: MatrixFile, places: Places) -> None:
    """Raises InputError for an axis that the command has no placeholder for: its values would change nothing."""
    script = script_of(file)
    if script is None:
        return
    sections: list[tuple[Key, dict[str, Any]]] = [(("matrix",), file.matrix), (("defaults",), file.defaults)]
    sections += [(("include", index), entry) for index, entry in enumerate(file.include)]
    allowed = axes_of(script)
    whole = file.values_of(GLOBAL)
    for key, entry in sections:
        if twice := next((name for name in script.step_placeholders if whole and name in entry), None):
            raise refusal(
                f"cannot be used with {GLOBAL} {show(whole[0])}, from which it follows with the batch",
                places,
                (*key, twice),
                fix="leave one of the two out",
            )
        if wrong := next((name for name in entry if name not in allowed), None):
            use = " or ".join(f"{{{name}}}" for name in OF_BENCH.get(wrong, (wrong,)))
            use = f"{{{MICRO_BATCHES}}}" if wrong == GLOBAL else use
            several = script.step_placeholders if wrong in CALLED_MICRO_BATCHES else ()
            raise refusal(
                f"no placeholder of the command uses {wrong!r}",
                places,
                (*key, wrong),
                allowed=allowed,
                fix=near_miss(wrong, allowed) or (f"write {several[0]}" if several else f"put {use} into the command"),
            )


def check_values(matrix: Matrix, given: Combination) -> None:
    """Raises InputError for a placeholder that a combination has no value for."""
    script = script_of(matrix)
    if script is None:
        return
    provided = _provided(matrix, script)
    if missing := sorted(script.placeholders.difference(provided, given)):
        index = next(i for i, word in enumerate(script.command) if missing[0] in placeholders(word))
        raise refusal(
            f"the placeholder {{{missing[0]}}} has no value",
            matrix.places,
            ("command", index),
            allowed=f"the name of an axis, or one of {', '.join(PROVIDED)}",
            fix=near_miss(missing[0], [*PROVIDED, *given]) or f"add matrix.{missing[0]}, or defaults.{missing[0]}",
        )


def check_program(matrix: Matrix, path: str) -> None:
    """Raises InputError if the folder of a script, or the program that runs it, does not exist on this machine.

    Args:
        path: the user's PATH; bench puts the folder of its own python first.
    """
    assert matrix.command is not None
    folder, program = Path(matrix.folder), matrix.command[0]
    if not folder.is_dir():
        raise refusal(f"there is no folder {matrix.folder!r}", matrix.places, ("folder",))
    found = str(folder / program) if "/" in program else program
    if shutil.which(found, path=f"{Path(sys.executable).parent}:{path}") is None:
        raise refusal(
            f"there is no program {program!r}",
            matrix.places,
            ("command", 0),
            fix="name one that is on your PATH, or by a path relative to the matrix: ./train.sh",
        )


def _check_words(file: MatrixFile, script: Script, places: Places) -> None:
    for index, word in enumerate(script.command):
        try:
            placeholders(word)
        except ValueError as error:
            raise refusal(
                f"{show(word)}: {error}",
                places,
                ("command", index),
                allowed="{name} for a placeholder, {{ and }} for braces themselves",
            ) from error
    if "preset" in script.placeholders:
        raise refusal("{preset} cannot be a placeholder: a script has no presets", places, ("command",))
    if GLOBAL in script.placeholders:
        axis = None if file.values_of(GLOBAL) else f"--axis {GLOBAL}={file.train.global_batch or 'N'}"
        keep = _accumulates(script, axis)
        raise refusal(
            f"{{{GLOBAL}}} cannot be a placeholder: the samples of a step follow from {{batch}}, the processes and"
            f" {{{MICRO_BATCHES}}}",
            places,
            ("command",),
            fix="hand them over as {batch_global}" + (f"; to keep them, {keep}" if keep else ""),
        )
    if taken := sorted(filter(_TAKEN.match, script.placeholders)):
        raise refusal(f"{{{taken[0]}}} cannot be a placeholder: bench uses such names itself", places, ("command",))
    if not (script.is_observed or script.is_read_from_log or script.uses("out", "output_dir")):
        raise refusal(
            "{out} is missing from the command: its result, as JSON, goes to the file {out}",
            places,
            ("command",),
            fix="leave result out, and bench observes the script; or take its figures from its output with patterns,"
            " such as samples_per_s: 'regex:([\\d.]+) samples/s'",
        )
    if not script.uses(*OF_BENCH["batch"]):
        raise refusal("{batch} or {batch_global} is missing from the command: the batch", places, ("command",))


def _check_result(script: Script, places: Places) -> None:
    allowed = [*FIGURES, "num_processes"]
    for name in script.result:
        if name not in allowed:
            raise refusal(
                f"unknown figure {name!r}", places, ("result", name), allowed=allowed, fix=near_miss(name, allowed)
            )
    patterns = {name: key.removeprefix(IN_LOG) for name, key in script.result.items() if key.startswith(IN_LOG)}
    for name, pattern in patterns.items():
        try:
            groups = re.compile(pattern).groups
        except re.error as error:
            raise refusal(f"{show(pattern)} is no regular expression: {error}", places, ("result", name)) from error
        if groups != 1:
            raise refusal(
                f"{show(pattern)} has {groups} groups, and the figure is the only one", places, ("result", name)
            )
    if patterns and len(patterns) < len(script.result):
        raise refusal("takes some figures from the output and some from a file", places, ("result",), fix="choose one")
    gives = [name for name in script.result if name.startswith(("step_time", "samples_per_s"))]
    if script.result and not gives:
        raise refusal("names neither a step time nor samples_per_s", places, ("result",), fix="add one of the two")


def _check_settings(file: MatrixFile, script: Script, places: Places) -> None:
    """Settings that the file gives and the command does not hand over would look as if they had been measured."""
    given = {name: ("launch", name) for name in ("num_processes", "mixed_precision")}
    given |= {name: ("measure", name) for name in Measure.model_fields}
    for name, key in given.items():
        if script.is_observed and name in OBSERVED_SETTINGS:
            continue
        if key in places and not script.uses(*OF_BENCH[name]):
            use = " or ".join(f"{{{placeholder}}}" for placeholder in OF_BENCH[name])
            raise refusal("has no effect on the script", places, key, fix=f"put {use} into the command")
    fields = (key for key in places if key[:1] == ("train",) and key[1:2] not in ((), ("allow_unused",)))
    if trained := next(fields, None):
        name = str(trained[-1])
        axis = (script.step_placeholders or (MICRO_BATCHES,))[0] if name in CALLED_MICRO_BATCHES else name
        raise refusal(
            "has no effect on a script",
            places,
            trained,
            fix=_accumulates(script, f"--axis {axis}={show(getattr(file.train, name))}")
            if name in (GLOBAL, *CALLED_MICRO_BATCHES)
            else "make it an axis, such as lr, and put {lr} into the command",
        )


def _accumulates(script: Script, axis: str | None) -> str:
    """How a script gets as many micro-batches as ``axis`` asks for, as far as that is missing."""
    put = [] if script.step_placeholders else [f"put {{{MICRO_BATCHES}}} into the command"]
    return ", and ".join([*put, *([f"give {axis}"] if axis else [])])


def _first(places: Places, section: str) -> Key | None:
    """Where a section, or with overrides alone a field of it, is given."""
    return next((key for key in places if key[:1] == (section,)), None)
