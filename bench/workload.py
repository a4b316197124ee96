"""The protocol that a workload meets. bench knows nothing else of what it trains."""

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

from pydantic import BaseModel

from bench.errors import InputError, near_miss

if TYPE_CHECKING:
    import torch
    from torch.utils.data import Dataset

BUNDLED = {"pi05": "model.workload:Pi05", "pi07": "model.workload:Pi07"}


class Workload(Protocol):
    """A model and its samples. Importing its module should not import torch: `bench run --dry-run` does it too."""

    Config: ClassVar[type[BaseModel]]
    """Frozen, ``extra="forbid"``. Its fields are what a matrix may set or vary; they must be JSON values."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]]
    """Named field values that the user's own fields override. May be empty."""
    cpu_memory_limits: ClassVar[Mapping[str, int]]
    """Optional: bytes a rank by preset, for a search over batch on a CPU that is given no limit."""
    parameter_counts: ClassVar["Callable[[Any], Mapping[str, int]]"]
    """Optional: parameters of each part for a config, for `bench doctor`."""
    units: ClassVar[tuple[str, ...]]
    """Class names of the modules that are sharded as one. Each owns its whole computation in its ``forward``."""

    def __init__(self, config: Any) -> None: ...

    @classmethod
    def auto_preset(cls, device: str, memory_bytes_per_rank: int) -> str:
        """The preset for ``preset: auto``: the largest that trains in this memory."""
        ...

    def build(self) -> "torch.nn.Module":
        """The model in fp32 on the CPU, the same for the same ``torch.manual_seed``.

        Its ``forward`` takes a collated batch, a dict of tensors with a leading batch dimension, and returns a dict of
        scalar tensors: ``loss``, averaged over samples with equal weight, and any of ``mse``, ``ce``, ``l1``,
        ``accuracy``. It draws no random numbers of its own, so that the same samples give the same loss on any backend
        and split over ranks. Samples keep the dtype that the dataset gave them, while weights may be bf16 and nothing
        autocasts: it casts where the two meet.
        """
        ...

    def dataset(self, seed: int) -> "Dataset[dict[str, torch.Tensor]]":
        """A map-style dataset whose sample ``i`` depends on ``seed`` and ``i`` alone; long enough for any run."""
        ...


def load(name: str) -> type[Workload]:
    """The workload class called ``name``: a bundled one, or ``package.module:Class``.

    The current folder is importable, as with ``python -m``.

    Raises:
        InputError: no such bundled workload, module or class, or the class does not meet the protocol.
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
        found = getattr(importlib.import_module(module_name), class_name)
    except (Exception, SystemExit) as error:  # a module of the user's may raise anything
        raise InputError(
            f"cannot load {name!r}: {type(error).__name__}: {error}",
            field="workload.name",
            fix="the module must be installed or lie below the folder that bench is run from",
        ) from error
    missing = [
        part for part in ("Config", "presets", "units", "auto_preset", "build", "dataset") if not hasattr(found, part)
    ]
    if missing:
        raise InputError(
            f"{name!r} is not a workload: it has no {', '.join(missing)}",
            field="workload.name",
            fix="see the protocol in bench/workload.py",
        )
    if not (isinstance(found.Config, type) and issubclass(found.Config, BaseModel)):
        raise InputError(f"{name!r} is not a workload: its Config is no pydantic model", field="workload.name")
    if not isinstance(found.units, tuple) or not all(isinstance(unit, str) for unit in found.units):
        raise InputError(f"{name!r} is not a workload: its units are no tuple of class names", field="workload.name")
    with suppress(ValueError):  # what is written in C may have no signature to look at
        try:
            inspect.signature(found).bind("config")
        except TypeError as error:
            raise InputError(
                f"{name!r} is not a workload: it cannot be made from its config: {error}",
                field="workload.name",
                fix="give it an __init__(self, config)",
            ) from error
    return cast(type[Workload], found)


def module_of(name: str) -> str:
    """The module to import for the workload called ``name``."""
    return BUNDLED.get(name, name).partition(":")[0]
