"""Libraries that only some exports need: optional extras of the package."""

from importlib import import_module
from types import ModuleType

from bench.errors import InputError


def needed(module: str, *, extra: str) -> ModuleType:
    """The module, imported now.

    Raises:
        InputError: it is not installed; names the extra that installs it.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise InputError(
            f"this export needs the library {error.name}, which is not installed",
            fix=f"pip install 'training-bench[{extra}]'",
        ) from error
