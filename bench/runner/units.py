"""How often a step runs each of the workload's units: sharding libraries gather a unit's weights when it runs."""

import contextlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import TypeVar

import torch
from torch import nn

T = TypeVar("T")


class Units:
    """The units of a model that is not sharded yet, and what they do once it is."""

    def __init__(self, model: nn.Module, names: Collection[str]) -> None:
        """Take the units' sizes.

        Args:
            names: their classes.
        """
        self._parameters: dict[nn.Module, int] = {}
        self._steps: list[Counter[nn.Module]] = []
        taken: set[nn.Parameter] = set()
        # Inner units first: an outer unit is gathered without them.
        for module in reversed([module for module in model.modules() if type(module).__name__ in names]):
            own = set(module.parameters()) - taken
            taken |= own
            self._parameters[module] = sum(parameter.numel() for parameter in own)

    def add(self, parameters: Mapping[nn.Module, int]) -> None:
        """Count these modules too, with so many parameters each."""
        self._parameters = {**parameters, **self._parameters}

    @contextlib.contextmanager
    def counted(self, batches: Iterator[T]) -> Iterator[Iterator[T]]:
        """``batches``, with the runs counted of each step that takes one of them.

        Not for compiled units: a hook would become part of their graphs.
        """
        hooks = [module.register_forward_pre_hook(self._count) for module in self._parameters]
        try:
            yield self._stepped(batches)
        finally:
            for hook in hooks:
                hook.remove()

    def _stepped(self, batches: Iterator[T]) -> Iterator[T]:
        for batch in batches:
            self._steps.append(Counter())
            yield batch

    def _count(self, unit: nn.Module, _inputs: object) -> None:
        if torch._C._current_graph_task_id() == -1:  # else backward is recomputing, and has gathered the unit
            self._steps[-1][unit] += 1

    def parameters_by_runs(self) -> dict[int, int] | None:
        """Parameters of the units by their runs in one step; None where these are not the same in each step."""
        if not self._steps or any(runs != self._steps[0] for runs in self._steps):
            return None
        parameters = Counter[int]()
        for unit, number in self._parameters.items():
            parameters[self._steps[0][unit]] += number
        return dict(parameters)
