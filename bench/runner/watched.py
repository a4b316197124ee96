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
        self._compiled = False
        """Whether the model compiled parts of itself meanwhile, which the hooks do not see."""
        self._unseen = unseen

    @abstractmethod
    def _hooked(self) -> Iterable[Any]:
        """Set the hooks; each is removed when the last step is over."""

    @contextlib.contextmanager
    def watched(self, batches: Iterator[Batch], last: int | None = None) -> Iterator[Iterator[Batch]]:
        """``batches``; every step that takes one of them is watched.

        Args:
            last: index of the last of these steps. It is not watched if the model compiles parts of itself: their
                graphs are made anew once the hooks are gone, and no measured step may wait for that.
        """
        self._hooks = list(self._hooked())
        before = graphs()
        try:
            yield self._stepped(batches, last, before)
        finally:
            self._release()
            self._compiled = graphs() > before

    def _stepped(self, batches: Iterator[Batch], last: int | None, before: int) -> Iterator[Batch]:
        for number, batch in enumerate(batches):
            if number and number == last and graphs() > before:
                self._release()
            else:
                self._steps.append(self._unseen())
            yield batch

    def _release(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()


def in_backward() -> bool:
    """Whether autograd runs: a module that is called then repeats its forward."""
    return torch._C._current_graph_task_id() != -1
