"""The protocol that a workload implements. bench knows nothing else about what it trains."""

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

BUNDLED = {"pi05": "bench.model.workload:Pi05", "pi07": "bench.model.workload:Pi07"}


class Flops(Protocol):
    """Floating-point operations of one sample; a multiply-add counts as two. Any object with these attributes."""

    @property
    def step(self) -> int:
        """Forward, backward, and what gradient checkpointing recomputes."""
        ...

    @property
    def recomputed(self) -> int:
        """The part of ``step`` that gradient checkpointing recomputes."""
        ...


class Workload(Protocol):
    """A model and its samples. Its module should import without torch, because `bench run --dry-run` imports it too."""

    Config: ClassVar[type[BaseModel]]
    """Frozen, ``extra="forbid"``. A matrix may set or vary its fields; they must be JSON values."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]]
    """Named field values that the user's own fields override. May be empty."""
    cpu_memory_limits: ClassVar[Mapping[str, int]]
    """Optional: bytes per rank, by preset. The memory limit of a batch search on a CPU when the user sets none."""
    parameter_counts: ClassVar["Callable[[Any], Mapping[str, int]]"]
    """Optional: the parameter count of each part of the model for a config; `bench doctor` shows it."""
    flops_per_sample: Callable[[], Flops]
    """Optional: from it the report computes MFU, HFU and the recomputed share."""
    tokens_per_sample: Callable[[], int]
    """Optional: the length of a sample's sequence, for tokens per second."""
    units: ClassVar[tuple[str, ...]]
    """Class names of the modules that are sharded, each as one unit. Its ``forward`` does all of its computation."""

    def __init__(self, config: Any) -> None: ...

    @classmethod
    def auto_preset(cls, device: str, memory_bytes_per_rank: int) -> str:
        """The preset for ``preset: auto``: the largest that trains in this memory."""
        ...

    def build(self) -> "torch.nn.Module":
        """The model in fp32 on the CPU, the same for the same ``torch.manual_seed``.

        Its ``forward`` takes a collated batch, a dict of tensors with a leading batch dimension, and returns a dict of
        scalar tensors: ``loss``, averaged over samples with equal weight, and any of ``mse``, ``ce``, ``l1``,
        ``accuracy``. It draws no random numbers, so that the same samples give the same loss on any backend and any
        number of ranks. Samples keep their dataset's dtype, weights may be bf16, and autocast is off: ``forward``
        itself casts where the two meet.
        """
        ...

    def dataset(self, seed: int) -> "Dataset[dict[str, torch.Tensor]]":
        """A map-style dataset whose sample ``i`` depends on ``seed`` and ``i`` alone; long enough for any run."""
        ...


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
