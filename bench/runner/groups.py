"""What accelerate shards together under FSDP2: besides the units, it makes groups of embeddings, last norm and head."""

import contextlib
import copy
from collections import defaultdict
from collections.abc import Collection, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from accelerate.utils import FullyShardedDataParallelPlugin
from accelerate.utils.fsdp_utils import fsdp2_prepare_model
from torch import nn

EMBEDDINGS = ("get_input_embeddings", "get_output_embeddings")
"""Methods by which accelerate finds the modules that it takes out of the root."""


class Group(NamedTuple):
    """Modules whose weights are gathered at once."""

    modules: tuple[nn.Module, ...]
    reshards: bool
    """Whether it frees the weights after forward."""
    late: bool = False
    """Whether its gradients are reduced after all of backward: its first module gets token ids, which have none."""


def plugin_for(units: Collection[str]) -> Any:
    """accelerate's settings of FSDP2 with these units, by their class names."""
    return FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=list(units),
        reshard_after_forward=True,
        cpu_ram_efficient_loading=False,
    )


def units_of(model: nn.Module, names: Collection[str]) -> list[Group]:
    """The modules of these classes, each as a group."""
    return [Group((module,), reshards=True) for module in model.modules() if type(module).__name__ in names]


def groups(model: nn.Module, plugin: Any) -> list[Group]:
    """The groups that accelerate makes of ``model``, without the root's: it is asked, and shards nothing."""
    made: list[Group] = []

    def record(module: nn.Module | list[nn.Module], reshard_after_forward: object = True, **_: object) -> None:
        taken = {one for group in made for one in group.modules}  # accelerate leaves out what is sharded already
        modules = module if isinstance(module, list) else [module]
        if left := tuple(one for one in modules if one not in taken):
            made.append(Group(left, reshard_after_forward is not False))

    asked = copy.copy(plugin)
    asked.cpu_ram_efficient_loading, asked.ignored_modules = False, None  # for these it would move the model
    state = SimpleNamespace(fsdp_plugin=asked)
    with patch.object(torch.distributed.fsdp, "fully_shard", record):
        fsdp2_prepare_model(SimpleNamespace(state=state, mixed_precision="no", is_main_process=False), model)
    return made[:-1]


@contextlib.contextmanager
def shareable(model: nn.Module, plugin: Any) -> Iterator[None]:
    """While accelerate shards ``model``: leave embeddings and head to the root if their weights are others' too.

    torch has each parameter in one group, and accelerate looks at two modules, the input's embedding and the head. T5
    has the weight of these in its encoder and its decoder, too. Models without an embedding, such as wav2vec2, may
    raise where accelerate asks for it; their root has all that is in no unit.

    Raises:
        ValueError: modules that are not all in one unit share a parameter of it.
    """
    try:
        splits = bool(_shared(model, groups(model, plugin)))
    except NotImplementedError:
        splits = True
    if not splits:
        yield
        return
    with contextlib.ExitStack() as hidden:
        for name in EMBEDDINGS:
            if hasattr(model, name):
                hidden.enter_context(patch.object(model, name, lambda: None))
        refuse_shared(model, groups(model, plugin))
        yield


def refuse_shared(model: nn.Module, made: list[Group]) -> None:
    """Raise ValueError if modules that are not all in one group share a parameter: FSDP1 leaves one of them with a
    parameter that it does not gather, and FSDP2 raises."""
    if names := _shared(model, made):
        raise ValueError(
            f"the parameter {names[0]} is shared by modules that are not all in one unit, and FSDP shards each"
            " parameter with one unit: name a larger module in the workload's units, or none, as in `units = ()`"
        )


def refuse_mixed(model: nn.Module, made: list[Group]) -> None:
    """Raise ValueError if parameters of one group differ in dtype: FSDP1 makes one tensor of them, and names none."""
    firsts: dict[int, tuple[str, torch.dtype]] = {}
    owners = _owners(model, made)
    for name, parameter in model.named_parameters():
        for owner in owners[parameter]:
            first, dtype = firsts.setdefault(owner, (name, parameter.dtype))
            if parameter.dtype != dtype:
                raise ValueError(
                    f"the parameters {first} of {dtype} and {name} of {parameter.dtype} are in one unit, of which FSDP1"
                    " makes one tensor: make a frozen one a buffer, or name smaller modules in the workload's units"
                )


def _shared(model: nn.Module, made: list[Group]) -> list[str]:
    """Names of the parameters that modules of different groups have."""
    owners = _owners(model, made)
    return [name for name, parameter in model.named_parameters() if len(owners[parameter]) > 1]


def _owners(model: nn.Module, made: list[Group]) -> dict[nn.Parameter, set[int]]:
    """The groups that have each parameter, by their numbers; -1 is the root."""
    index = {module: number for number, group in enumerate(made) for module in group.modules}
    owners = defaultdict[nn.Parameter, set[int]](set)

    def walk(module: nn.Module, owner: int) -> None:
        owner = index.get(module, owner)
        for parameter in module.parameters(recurse=False):
            owners[parameter].add(owner)
        for child in module.children():
            walk(child, owner)

    walk(model, -1)
    return owners
