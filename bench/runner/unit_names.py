"""The units of a model whose workload names none: the blocks that it repeats."""

from collections import defaultdict
from collections.abc import Iterable

from torch import nn

from bench.errors import WorkloadError

CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)


def unit_names(model: nn.Module, stated: tuple[str, ...] | None) -> tuple[str, ...]:
    """Class names of the modules that are sharded, or compiled, each as one.

    Args:
        model: not sharded yet.
        stated: by the workload; None if it leaves them to be found.

    Returns:
        What is stated; else those of the modules' ``_no_split_modules``, as transformers' models name them, that stand
        in a container. It names embeddings, too, but heads may have their weight, and models look at its dtype. Else
        the class that each outermost container repeats, without simple layers where there are others; else the class
        that the whole model repeats. Empty if there is none: the model is then one unit.

    Raises:
        WorkloadError: a stated unit is no class of a module of the model. Nothing would be sharded, without an error.
    """
    kinds = dict.fromkeys(type(module).__name__ for module in model.modules())
    if stated is not None:
        if missing := [unit for unit in stated if unit not in kinds]:
            raise WorkloadError(
                f"the workload's units name {', '.join(missing)}, but no module of its model is of that class",
                allowed=_blocks(kinds) or None,
            )
        return stated
    containers = (module for module in model.modules() if isinstance(module, CONTAINERS))
    listed = {type(child).__name__ for container in containers for child in container.children()}
    kept = [name for module in model.modules() for name in getattr(module, "_no_split_modules", None) or ()]
    named = [name for name in dict.fromkeys(kept) if name in listed]
    found = dict.fromkeys(_in_containers(model))
    # A list of simple layers is no block beside real ones; and accelerate would shard subclasses of them, too, such as
    # the last layer of torch's MultiheadAttention, of which attention takes the weight alone.
    blocks = [name for name in found if any(list(it.children()) for it in model.modules() if type(it).__name__ == name)]
    return tuple(named or blocks or found or _without_shared(model, _most_repeated(list(model.modules())[1:])))


def _without_shared(model: nn.Module, names: list[str]) -> list[str]:
    """``names``, if no module of these classes shares a weight with one of another class."""
    owners = defaultdict(set)
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners[parameter].add(type(module).__name__)
    shared = any(len(kinds) > 1 and not kinds.isdisjoint(names) for kinds in owners.values())
    return [] if shared else names


def _in_containers(module: nn.Module) -> list[str]:
    """The class that ``module`` repeats, if it is a container; else those of each child."""
    if isinstance(module, CONTAINERS) and (block := _most_repeated(module.children())):
        return block
    return [name for child in module.children() for name in _in_containers(child)]


def _most_repeated(children: Iterable[nn.Module]) -> list[str]:
    """Of the classes with several modules, the one with the most parameters; empty if there is none."""
    modules: dict[str, list[nn.Module]] = defaultdict(list)
    for child in children:
        if not isinstance(child, CONTAINERS):
            modules[type(child).__name__].append(child)
    sizes = {
        name: sum(parameter.numel() for module in repeated for parameter in module.parameters())
        for name, repeated in modules.items()
        if len(repeated) > 1
    }
    largest = max(sizes, key=sizes.__getitem__, default=None)
    return [largest] if largest is not None and sizes[largest] else []


def _blocks(kinds: Iterable[str]) -> list[str]:
    """The model's own classes: those that torch does not have."""
    return [kind for kind in kinds if not hasattr(nn, kind)]
