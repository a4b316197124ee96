"""How often a step runs each of the workload's units: sharding libraries gather a unit's weights when it runs."""

import contextlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from itertools import zip_longest
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from bench.runner.compiled import graphs

T = TypeVar("T")


class Run(NamedTuple):
    """One forward of a unit."""

    unit: nn.Module
    grad: bool
    """Whether backward will pass it."""


class Units:
    """The units of a model that is not sharded yet, and what they do once it is."""

    def __init__(self, model: nn.Module, names: Collection[str]) -> None:
        """Take the units' sizes.

        Args:
            names: their classes.
        """
        self._parameters: dict[nn.Module, int] = {}
        self._steps: list[list[Run]] = []
        self._hooks: list[Any] = []
        self._compiled = False
        """Whether the model compiled parts of itself meanwhile: a unit that no hook saw may be in one of them."""
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
    def counted(self, batches: Iterator[T], last: int | None = None) -> Iterator[Iterator[T]]:
        """``batches``, with the runs counted of each step that takes one of them.

        Not for compiled units: a hook would become part of their graphs.

        Args:
            last: as in `Used.watched`.
        """
        self._hooks = [module.register_forward_hook(self._ran) for module in self._parameters]
        before = graphs()
        try:
            yield self._stepped(batches, last, before)
        finally:
            self._release()
            self._compiled = graphs() > before

    def _stepped(self, batches: Iterator[T], last: int | None, before: int) -> Iterator[T]:
        for number, batch in enumerate(batches):
            if number and number == last and graphs() > before:
                self._release()
            else:
                self._steps.append([])
            yield batch

    def _release(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _ran(self, unit: nn.Module, _inputs: object, output: object) -> None:
        if torch.compiler.is_compiling():  # a part that the model compiles itself: nothing for its graph
            return
        if torch._C._current_graph_task_id() == -1:  # else backward is recomputing, and has gathered the unit
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
