"""What warm-up steps use of a model: which of its modules run, and which of its parameters get a gradient.

Sharding libraries exchange parameters for parts and views, and free or combine gradients. So a gradient is seen where
autograd makes it: by a hook on the tensor that a module holds as its parameter when it, or a module around it, runs.
The gradient may be zero, as that of an expert without samples.
"""

import contextlib
import weakref
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from bench.observe.effective import scalars
from bench.records.rank_outcome import Coverage
from bench.runner.unit_names import CONTAINERS
from bench.runner.watched import Watched, in_backward

MOST_NAMES = 4
UNFINISHED = "Expected to have finished reduction in the prior iteration"
"""Words of torch's reducer, in the step after the one without the gradients."""


class _Slot(NamedTuple):
    """Where a module holds a parameter; a shared one has several."""

    module: nn.Module
    attribute: str
    parameter: int


class Used(Watched[set[nn.Module]]):
    """The modules and parameters of a model that is not sharded yet, and which of them are used once it is."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(set)
        parameters = dict(model.named_parameters())
        numbers = {id(one): number for number, one in enumerate(parameters.values())}
        self._names = list(parameters)
        self._elements = [scalars(one) for one in parameters.values()]
        self._trained = [one.requires_grad for one in parameters.values()]
        self._reached = [False] * len(self._names)
        self._left = sum(self._trained)
        self._modules = list(model.modules())
        self._parents = {child: parent for parent in self._modules for child in parent.children()}
        self._slots = {
            module: [
                _Slot(module, name, numbers[id(one)]) for name, one in module._parameters.items() if one is not None
            ]
            for module in self._modules
        }
        self._owners: list[list[nn.Module]] = [[] for _ in self._names]
        for slot in (slot for slots in self._slots.values() for slot in slots):
            self._owners[slot.parameter].append(slot.module)
        self._held: dict[_Slot, Any] = {}
        """The tensor that each place held when it was hooked."""

    def _hooked(self) -> Iterator[Any]:
        return (module.register_forward_pre_hook(self._enter) for module in self._modules)

    def _release(self) -> None:
        super()._release()
        self._held.clear()

    def _enter(self, module: nn.Module, _inputs: object) -> None:
        if torch.compiler.is_compiling():  # a part that the model compiles itself: nothing for its graph
            return
        if not in_backward():
            self._steps[-1].add(module)
        if not self._left:
            return
        for inner in module.modules():
            for slot in self._slots.get(inner, ()):
                if self._trained[slot.parameter] and not self._reached[slot.parameter]:
                    self._hook(slot)

    def _hook(self, slot: _Slot) -> None:
        # Not by `getattr`: DeepSpeed would gather a parameter whose module does not run yet, and remember that.
        state = vars(slot.module)
        held = state.get(slot.attribute, dict.get(state["_parameters"], slot.attribute))
        seen = self._held.get(slot)
        if not isinstance(held, Tensor) or not held.requires_grad or (seen and seen() is held):
            return
        self._held[slot] = weakref.ref(held)
        handle = held.register_hook(partial(self._reach, slot.parameter))  # type: ignore[no-untyped-call]
        if held.is_leaf:  # a view of FSDP's flat parameter ends with its step
            self._hooks.append(handle)

    def _reach(self, parameter: int, gradient: Tensor | None) -> None:
        if gradient is not None and not self._reached[parameter]:
            self._reached[parameter] = True
            self._left -= 1

    def coverage(self, accelerator: Accelerator, dropped: dict[str, str]) -> Coverage:
        """What the watched steps of all ranks used. A collective: every rank calls it."""
        trainable = [number for number, trained in enumerate(self._trained) if trained]
        model = Coverage(
            parameters=sum(self._elements), trainable_parameters=self._sum(trainable), dropped_keys=dropped
        )
        if not self._steps:
            return model
        runs = Counter(module for step in self._steps for module in step)
        counts = [*map(int, self._reached), *(runs[module] for module in self._modules), len(self._steps)]
        counts.append(int(self._compiled))
        gathered: Tensor = accelerator.gather(torch.tensor([counts], device=accelerator.device))
        *found, steps, compiled = gathered.sum(dim=0).tolist()
        reached, ran = found[: len(self._names)], dict(zip(self._modules, found[len(self._names) :], strict=True))
        used = [any(self._may_be_used(ran, owner) for owner in owners) for owners in self._owners]
        unreached = [one for one in trainable if not reached[one]]
        unrun = [one for one, its_used in enumerate(used) if not its_used and not reached[one]]
        routed = {one for one in (*unreached, *unrun) if any(self._is_routed(ran, steps, m) for m in self._owners[one])}
        unreached, unrun = ([one for one in group if one not in routed] for group in (unreached, unrun))
        if compiled and (unreached or unrun):  # they may be in a part that the model compiles itself
            return model
        return model.model_copy(
            update={
                "without_gradient": self._sum(unreached),
                "without_gradient_names": self._largest(unreached, trainable),
                "not_run": self._sum(unrun),
                "not_run_names": self._largest(unrun, range(len(used))),
                "not_routed": self._sum(routed),
            }
        )

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Says which parameters got no gradient, and what to do, where DDP says only that there are some."""
        try:
            yield
        except RuntimeError as error:
            if UNFINISHED not in str(error):
                raise
            trainable = [number for number, trained in enumerate(self._trained) if trained]
            names = (
                self._largest([one for one in trainable if not self._reached[one]], trainable) if self._steps else ()
            )
            raise RuntimeError(
                f"DDP waits for the gradients of parameters that a step does not use: {', '.join(names) or 'n/a'}; set"
                f" train.find_unused_parameters=true, freeze them, or leave them out of the model\n{error}"
            ) from error

    def _may_run(self, ran: dict[nn.Module, int], module: nn.Module) -> bool:
        """Whether a parameter of ``module`` may be used: what a module around it may take from a simple one, also from
        one in a list, is not seen."""
        parent = self._parents.get(module)
        simple = isinstance(module, nn.ModuleList | nn.ModuleDict) or not list(module.children())
        return ran[module] > 0 or (simple and parent is not None and self._may_run(ran, parent))

    def _may_be_used(self, ran: dict[nn.Module, int], module: nn.Module) -> bool:
        """Whether a parameter of ``module`` may be used. If a part of the module runs, a method of it may have been
        called, which takes the module's own parameters."""
        return self._may_run(ran, module) or any(ran[inner] > 0 for inner in module.modules())

    def _is_routed(self, ran: dict[nn.Module, int], steps: int, module: nn.Module) -> bool:
        """Whether ``module`` is part of one of several alike, such as experts, of which samples choose: others of them
        ran in some steps only."""
        parent = self._parents.get(module)
        if parent is None:
            return False
        alike = (
            [one for one in parent.children() if type(one) is type(module)] if isinstance(parent, CONTAINERS) else []
        )
        return any(0 < ran[one] < steps for one in alike) or self._is_routed(ran, steps, parent)

    def _sum(self, parameters: Iterable[int]) -> int:
        return sum(self._elements[one] for one in parameters)

    def _largest(self, chosen: Collection[int], among: Iterable[int]) -> tuple[str, ...]:
        """The modules of which all parameters are ``chosen``, as far as they are ``among`` them; the largest first."""
        of_name = {self._names[one]: one for one in among}
        groups = list(_whole("", list(of_name), {self._names[one] for one in chosen}))
        groups.sort(key=lambda group: -self._sum(of_name[name] for name in group[1]))
        return tuple(prefix for prefix, _ in groups[:MOST_NAMES])


def _whole(prefix: str, names: list[str], chosen: Collection[str]) -> Iterator[tuple[str, list[str]]]:
    """The largest modules whose ``names`` are all ``chosen``, with these names."""
    if all(name in chosen for name in names):
        yield prefix or "the whole model", names
    elif any(name in chosen for name in names):
        start = len(prefix) + 1 if prefix else 0
        for part, inner in groupby(names, lambda name: name[:start] + name[start:].partition(".")[0]):
            yield from _whole(part, list(inner), chosen)
