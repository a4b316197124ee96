"""How often a step runs each of the workload's units: sharding libraries gather a unit's weights when it runs."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from bench.observe.effective import scalars
from bench.runner.watched import Watched, in_backward


class Run(NamedTuple):
    """One forward of a unit."""

    unit: nn.Module
    grad: bool
    """Whether backward will pass it."""


class Units(Watched[list[Run]]):
    """The units of a model that is not sharded yet, and what they do once it is."""

    def __init__(self, model: nn.Module, names: Collection[str]) -> None:
        """Take the sizes of the units, whose classes have these names."""
        super().__init__(list)
        self._parameters: dict[nn.Module, int] = {}
        taken: set[nn.Parameter] = set()
        # Inner units first: an outer unit is gathered without them.
        for module in reversed([module for module in model.modules() if type(module).__name__ in names]):
            own = set(module.parameters()) - taken
            taken |= own
            self._parameters[module] = sum(map(scalars, own))

    def add(self, parameters: Mapping[nn.Module, int]) -> None:
        """Count these modules too, with so many parameters each."""
        self._parameters = {**parameters, **self._parameters}

    def _hooked(self) -> Iterator[Any]:
        return (module.register_forward_hook(self._ran) for module in self._parameters)

    def _ran(self, unit: nn.Module, _inputs: object, output: object) -> None:
        if torch.compiler.is_compiling():  # a part that the model compiles itself: nothing for its graph
            return
        if not in_backward():  # which has gathered the unit
            grad = any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in tree_leaves(output))
            self._steps[-1].append(Run(unit, grad))

    def parameters_by_runs(self) -> dict[int, int] | None:
        """Parameters of the units by their runs in one step; None where these are not the same in each step, or where
        a compiled part hides some."""
        return self._by_number([Counter(run.unit for run in step) for step in self._steps])

    def parameters_regathered(self) -> dict[int, int] | None:
        """Parameters of the units by how often FSDP gathers them for backward, which passes a run whose output
        requires a gradient, and fetches the run before it ahead (torch/distributed/fsdp/_fully_shard,
        `_backward_prefetch`). What is in no unit comes last, and backward begins there.

        None where that is not the same in each step.
        """
        return self._by_number(
            [
                Counter(run.unit for run, after in zip_longest(step, step[1:]) if run.grad or not after or after.grad)
                for step in self._steps
            ]
        )

    def _by_number(self, steps: list[Counter[nn.Module]]) -> dict[int, int] | None:
        if not steps or any(step != steps[0] for step in steps):
            return None
        if self._compiled and not all(steps[0][unit] for unit in self._parameters):
            return None
        parameters = Counter[int]()
        for unit, number in self._parameters.items():
            parameters[steps[0][unit]] += number
        return dict(parameters)
