"""Finds a workload by its name."""

import importlib
import sys
from pathlib import Path
from typing import Any

from bench.errors import InputError, near_miss
from bench.workloads import huggingface
from bench.workloads.definition import define
from bench.workloads.protocol import Definition

BUNDLED = {"pi05": "bench.model.workload:Pi05", "pi07": "bench.model.workload:Pi07"}


def load(name: str) -> Definition:
    """The workload called ``name``: a bundled one, ``package.module:name`` of a class or a function, or ``hf:`` and a
    model of transformers.

    Modules in the current folder can be imported, as with ``python -m``, and modules in the folders of `search`.

    Raises:
        InputError: no such bundled workload, module, class or function, or it does not implement the protocol.
    """
    return huggingface.define(name) if name.startswith(huggingface.PREFIX) else define(name, _found(name))


def locate(name: str, folder: Path) -> tuple[str, str | None]:
    """The ``name`` of a matrix as ``package.module:name``, and the folder to look for the module in; None if bundled.

    Args:
        name: may also be ``./file.py:name``, below ``folder``.

    Raises:
        InputError: there is no such folder or file, or Python would import another module instead of it.
    """
    if name in BUNDLED:
        return name, None
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder", field="workload_folder", fix="it is relative to the matrix file")
    if name.startswith(huggingface.PREFIX):
        return name, str(folder.resolve())
    written, _, attribute = name.rpartition(":")
    if not written.endswith(".py"):
        return name, str(folder.resolve())
    if not (folder / written).is_file():
        fix = "its path is relative to the matrix file"
        raise InputError(f"{folder / written} is not a file", field="workload.name", fix=fix)
    file = (folder / written).resolve()
    taken = file.stem in sys.stdlib_module_names or _imported_from(file.stem) not in (None, file)
    if taken or not file.stem.isidentifier():
        why = "another module has this name" if taken else "no module can have this name"
        raise InputError(f"{file.name} cannot be imported: {why}", field="workload.name", fix="rename the file")
    return f"{file.stem}:{attribute}", str(file.parent)


def _imported_from(module: str) -> Path | None:
    """The file of a module that is imported already."""
    found = getattr(sys.modules.get(module), "__file__", None)
    return Path(found).resolve() if found else None


def search(folder: str | None) -> None:
    """Look for modules in ``folder`` before anywhere else, and in the current folder."""
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    if folder is not None and sys.path[0] != folder:
        sys.path[:] = [folder, *(place for place in sys.path if place != folder)]


def _found(name: str) -> Any:
    path = BUNDLED.get(name, name)
    module_name, colon, attribute = path.partition(":")
    if not colon or not module_name or not attribute:
        raise InputError(
            f"{name!r} is not a workload",
            field="workload.name",
            allowed=[*BUNDLED, "package.module:name", "./file.py:name", "hf:<model type>"],
            fix=near_miss(name, BUNDLED),
        )
    search(None)
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        places = "install it, or keep it beside the matrix file or in the folder where you run bench"
        raise InputError(
            f"cannot load {name!r}: {type(error).__name__}: {error}",
            field="workload.name",
            fix=places if isinstance(error, ModuleNotFoundError) else None,
        ) from error
    if not hasattr(module, attribute):
        own = [key for key, value in vars(module).items() if getattr(value, "__module__", None) == module_name]
        raise InputError(
            f"cannot load {name!r}: {module_name} defines no {attribute!r}",
            field="workload.name",
            allowed=own or None,
            fix=near_miss(attribute, own),
        )
    return getattr(module, attribute)


def modules_of(name: str) -> tuple[str, ...]:
    """The modules to import for the workload called ``name``."""
    if name.startswith(huggingface.PREFIX):
        return huggingface.modules(name)
    return (BUNDLED.get(name, name).partition(":")[0],)
