"""The units of a model whose workload names none: the blocks that it repeats."""

from collections import defaultdict
from collections.abc import Iterable

from torch import nn

from bench.errors import InputError

CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)


def unit_names(model: nn.Module, stated: tuple[str, ...] | None) -> tuple[str, ...]:
    """Class names of the modules that are sharded, or compiled, each as one.

    Args:
        model: not sharded yet.
        stated: by the workload; None if it leaves them to be found.

    Returns:
        What is stated; else the modules' ``_no_split_modules``, as transformers' models name them, without those that
        share a weight with other modules, such as tied embeddings: a unit's weights are freed with it. Else the class
        that each outermost container repeats; else the class that the whole model repeats. Empty if there is none: the
        model is then one unit.

    Raises:
        InputError: a stated unit is no class of a module of the model. Nothing would be sharded, without an error.
    """
    kinds = dict.fromkeys(type(module).__name__ for module in model.modules())
    if stated is not None:
        if missing := [unit for unit in stated if unit not in kinds]:
            raise InputError(
                f"the workload's units name {', '.join(missing)}, but no module of its model is of that class",
                allowed=_blocks(kinds) or None,
            )
        return stated
    kept = [name for module in model.modules() for name in getattr(module, "_no_split_modules", None) or ()]
    named = [name for name in dict.fromkeys(kept) if name in kinds and not _shares(model, name)]
    return tuple(named or dict.fromkeys(_in_containers(model)) or _most_repeated(list(model.modules())[1:]))


def _shares(model: nn.Module, name: str) -> bool:
    """Whether a module of this class has a parameter that a module outside it has, too."""
    for unit in (module for module in model.modules() if type(module).__name__ == name):
        inside, own = set(unit.modules()), set(unit.parameters())
        others = (one for module in model.modules() if module not in inside for one in module.parameters(recurse=False))
        if any(parameter in own for parameter in others):
            return True
    return False


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
