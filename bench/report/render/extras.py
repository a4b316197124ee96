"""Libraries that only some exports need: optional extras of the package."""

from importlib import import_module
from types import ModuleType

from bench.errors import InputError


def needed(module: str, *, extra: str) -> ModuleType:
    """The module, imported now.

    Raises:
        InputError: it is not installed; names the extra that installs it.
    """
    missing = InputError(
        f"this export needs the library {module}, which is not installed", fix=f"pip install 'training-bench[{extra}]'"
    )
    try:
        found = import_module(module)
    except ModuleNotFoundError as error:
        raise missing from error
    if found.__file__ is None:  # a folder of that name: W&B leaves a folder wandb/ where it was used
        raise missing
    return found
