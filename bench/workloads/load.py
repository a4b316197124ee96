"""Finds a workload by its name."""

import importlib
import inspect
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import cast

from pydantic import BaseModel

from bench.errors import InputError, near_miss
from bench.workloads.protocol import Workload

BUNDLED = {"pi05": "bench.model.workload:Pi05", "pi07": "bench.model.workload:Pi07"}


def load(name: str) -> type[Workload]:
    """The workload class called ``name``: a bundled one, or ``package.module:Class``.

    Modules in the current folder can be imported, as with ``python -m``.

    Raises:
        InputError: no such bundled workload, module or class, or the class does not implement the protocol.
    """
    path = BUNDLED.get(name, name)
    module_name, colon, class_name = path.partition(":")
    if not colon or not module_name or not class_name:
        raise InputError(
            f"{name!r} is not a workload",
            field="workload.name",
            allowed=[*BUNDLED, "package.module:Class"],
            fix=near_miss(name, BUNDLED),
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        workload = getattr(importlib.import_module(module_name), class_name)
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise InputError(
            f"cannot load {name!r}: {type(error).__name__}: {error}",
            field="workload.name",
            fix="install the module, or run bench from the folder that contains it",
        ) from error
    protocol = ("Config", "presets", "units", "auto_preset", "build", "dataset")
    missing = [part for part in protocol if not hasattr(workload, part)]
    if missing:
        raise InputError(
            f"{name!r} is not a workload: it has no {', '.join(missing)}",
            field="workload.name",
            fix="`bench guide workloads` shows one",
        )
    config = workload.Config
    if not (isinstance(config, type) and issubclass(config, BaseModel) and config is not BaseModel):
        raise InputError(
            f"{name!r} is not a workload: its Config is not a pydantic model of its own",
            field="workload.name",
            fix="give it a class Config(pydantic.BaseModel) with a field for each option; it may have none",
        )
    presets = workload.presets
    if not (
        isinstance(presets, Mapping) and all(isinstance(fields, Mapping) for fields in presets.values())
    ) or not all(isinstance(preset, str) for preset in presets):
        raise InputError(
            f"{name!r} is not a workload: its presets are not a mapping from names to fields of its Config",
            field="workload.name",
            fix="`presets = {}` for none",
        )
    if not isinstance(workload.units, tuple) or not all(isinstance(unit, str) for unit in workload.units):
        raise InputError(f"{name!r} is not a workload: its units are not a tuple of class names", field="workload.name")
    with suppress(ValueError):  # a class written in C may have no signature
        try:
            inspect.signature(workload).bind("config")
        except TypeError as error:
            raise InputError(
                f"{name!r} is not a workload: it cannot be created from its config: {error}",
                field="workload.name",
                fix="give it an __init__(self, config)",
            ) from error
    return cast(type[Workload], workload)


def module_of(name: str) -> str:
    """The module to import for the workload called ``name``."""
    return BUNDLED.get(name, name).partition(":")[0]
