"""Hooks on the modules of a model during the steps of its warm-up."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

import torch

from bench.runner.compiled import graphs

Batch = TypeVar("Batch")
Seen = TypeVar("Seen")


class Watched(ABC, Generic[Seen]):
    """What hooks see of each step. Not for compiled modules: the hooks would become part of their graphs.

    Args:
        unseen: makes what is seen of a step before its hooks run.
    """

    def __init__(self, unseen: Callable[[], Seen]) -> None:
        self._steps: list[Seen] = []
        self._hooks: list[Any] = []
        self._graphs = 0
        self._ended = self._compiled = False
        """Whether the model compiled parts of itself meanwhile, which the hooks do not see."""
        self._unseen = unseen

    @abstractmethod
    def _hooked(self) -> Iterable[Any]:
        """Set the hooks; each is removed when the last step is over."""

    @contextlib.contextmanager
    def watched(self, batches: Iterator[Batch]) -> Iterator[Iterator[Batch]]:
        """``batches``; what a step does with each of them is watched."""
        self._hooks = list(self._hooked())
        self._graphs = graphs()
        try:
            yield self._stepped(batches)
        finally:
            self._compiled = graphs() > self._graphs
            self._release()

    def end_if_compiled(self) -> None:
        """Watch no further steps if the model compiles parts of itself: their graphs are made anew once the hooks are
        gone, and no measured step may wait for that."""
        if graphs() > self._graphs:
            self._release()

    def _stepped(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        for batch in batches:
            if not self._ended:
                self._steps.append(self._unseen())
            yield batch

    def _release(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._ended = True


def in_backward() -> bool:
    """Whether autograd runs: a module that is called then repeats its forward."""
    return torch._C._current_graph_task_id() != -1
