"""The workload that a matrix names: where it is found, and what stands in its place for a script."""

import re
from collections.abc import Sequence
from pathlib import Path

from bench import workloads
from bench.errors import InputError
from bench.matrix import script
from bench.matrix.matrix_file import MatrixFile, Values
from bench.matrix.yaml_file import Places, place_of, refusal
from bench.workloads import Definition
from bench.workloads.huggingface import PREFIX


def open_config(data: Values, places: Places, overrides: Sequence[str]) -> None:
    """Puts the fields of a Hugging Face model's ``workload.config`` beside bench's own; axes override them.

    Raises:
        InputError: a field is given in both, and by none of the ``overrides``, which come first.
    """
    workload = data.get("workload")
    if not isinstance(workload, dict) or not str(workload.get("name", "")).startswith(PREFIX):
        return
    config = workload.get("config")
    if not isinstance(config, dict):
        return  # validation reports the unknown field
    del workload["config"]
    for name, value in config.items():
        within, beside = ("workload", "config", name), ("workload", name)
        if name in workload and places.get(beside) in overrides:
            continue
        if name in workload and places.get(within) not in overrides:
            problem = f"{name!r} is given twice, first at {places[beside]}"
            raise refusal(problem, places, within, fix="remove one of the two")
        workload[name] = value
        places.update({(*beside, *key[3:]): at for key, at in places.items() if key[:3] == within})


def located(file: MatrixFile, folder: Path, where: str | None) -> MatrixFile:
    """The file with its workload's name in the form that a cell has, and the folder where it is found."""
    try:
        name, found_in = workloads.locate(file.workload.name, folder / (file.workload_folder or ""))
    except InputError as error:
        error.where = where
        raise
    workloads.search(found_in)
    chosen = file.workload.model_copy(update={"name": name})
    return file.model_copy(update={"workload": chosen, "workload_folder": found_in})


def load_workload(name: str, where: str | None) -> Definition:
    try:
        if ":" in name and not re.fullmatch(r"\w+(\.\w+)*:\w+|hf:.+", name):
            raise InputError(
                f"{name!r} is not a workload",
                field="workload.name",
                allowed=["package.module:name", "./file.py:name", "hf:<model type>"],
            )
        return workloads.load(name)
    except InputError as error:
        error.where = where
        raise


def workload_of(file: MatrixFile, places: Places) -> Definition:
    if file.command is not None:
        return script.workload_of(file)
    return load_workload(file.workload.name, place_of(places, ("workload", "name")))
