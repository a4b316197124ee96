"""The figures that a script has written, checked against what it was asked for."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from bench.errors import InputError
from bench.imported.files import Given, object_in, profiled, value_at
from bench.imported.meanings import of_script
from bench.imported.results import stated_figures
from bench.matrix.yaml_file import canonical, show
from bench.records.cell import Attempt
from bench.records.machine import Hardware
from bench.records.outcome import Scripted
from bench.records.script import IN_LOG, Script


@dataclass(frozen=True, kw_only=True)
class Read:
    """The figures of one attempt."""

    figures: Scripted
    not_read: tuple[str, ...]
    """Keys of the script that bench has no use for."""


def read_result(file: Path, attempt: Attempt, hardware: Hardware) -> Read | str:
    """The figures in the JSON object that the script of ``attempt`` has written, or why there are none.

    `step_time_...` is the mean time of one optimizer step, in which each process takes the batch, once for each
    micro-batch; `samples_per_s` counts the samples of all processes.
    """
    try:
        return _read(file, attempt, hardware)
    except InputError as error:
        return "; ".join(line.strip() for line in str(error).splitlines())


def _read(file: Path, attempt: Attempt, hardware: Hardware) -> Read:
    """Raises InputError: there is no such file, it is torn, or its figures are missing, ambiguous, or of another
    attempt."""
    cell, script, where = attempt.cell, attempt.cell.script, file.name
    assert script is not None
    own: dict[str, JsonValue] = {}  # what the script says of its own options
    not_read: list[str] = []
    if script.is_read_from_log:
        values = _from_log(file, script)
    elif script.result:
        entry = _result(file, script)
        stated = {name: value_at(entry, key, where) for name, key in script.result.items()}
        values = {name: value for name, value in stated.items() if value is not None}
    else:
        entry = _result(file, script)
        given = profiled(entry, where)
        values = dict(given.values)
        own = {name: entry[name] for name in cell.options if name in entry}
        not_read = [name for name in given.unknown if name not in own]
    _check_asked({**own, **values}, attempt)
    length = {"seq_len": cell.options["seq_len"]} if "seq_len" in cell.options else {}
    read = of_script({"num_processes": cell.num_processes, **length, **values}, where)
    read["device"] = hardware.device
    if not any(name.startswith("capacity_") for name in read):
        sharing = 1 if hardware.device == "cuda" else cell.ranks_per_node
        read["capacity_bytes"] = cell.memory_limit_bytes or hardware.memory_bytes // sharing
    row = Given(values=read, places=dict.fromkeys(read, where), where=where)
    figures = Scripted(**stated_figures(row, attempt))
    if not figures.step_time_s_per_rank and figures.samples_per_s_global is None:
        raise InputError(
            "has neither a step time nor a throughput", where=where, fix="give step_time_ms or samples_per_s"
        )
    return Read(figures=figures, not_read=tuple(not_read))


def _result(file: Path, script: Script) -> dict[str, JsonValue]:
    if not file.is_file():
        in_it = f"{{output_dir}}: there is no {file.name} in it"
        raise InputError(f"the script wrote no result to {'{out}' if script.uses('out') else in_it}")
    return object_in(file.read_text(errors="replace"), file.name)


def _from_log(log: Path, script: Script) -> dict[str, JsonValue]:
    """The last number that each pattern finds in a script's output.

    Raises:
        InputError: one finds none.
    """
    text, values = log.read_text(errors="replace") if log.is_file() else "", dict[str, JsonValue]()
    for name, key in script.result.items():
        pattern = key.removeprefix(IN_LOG)
        found = re.findall(pattern, text)
        if not found:
            raise InputError(f"no line of the script's output has {pattern!r}", field=f"result.{name}")
        try:
            values[name] = float(found[-1].replace(",", ""))
        except ValueError as error:
            raise InputError(
                f"{show(found[-1])}, which {pattern!r} finds in the script's output, is no number",
                field=f"result.{name}",
            ) from error
    return values


def _check_asked(values: Mapping[str, JsonValue], attempt: Attempt) -> None:
    """A script that did something else than it was asked to gives figures of something else."""
    cell, script = attempt.cell, attempt.cell.script
    asked = {
        **cell.options,
        "backend": cell.backend,
        "batch": attempt.batch_per_rank,
        "num_processes": cell.num_processes,
    }
    for name, value in asked.items():
        if name in values and canonical(values[name]) != canonical(value):
            fix = "hand {num_processes} or {accelerate_config} to it" if name == "num_processes" else None
            raise InputError(f"the script ran with {name} {show(values[name])}, not {show(value)}", fix=fix)
    told = script is not None and script.uses("num_processes", "batch_global", "accelerate_config")
    if not told and "num_processes" not in values and "samples_per_s" not in values:
        raise InputError(
            "a step time alone is ambiguous: nothing says how many processes share the step",
            fix="put {num_processes} into the command, or num_processes or samples_per_s into the result",
        )
