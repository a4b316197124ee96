"""Where the time of an observed step goes: a mark where a phase begins or ends, and nothing that waits for the device.

They are timed in steps of their own, after the measured ones. What is inside another phase counts for itself alone: an
optimizer in backward, or forward and backward in the closure of an optimizer. Forward lasts until the next phase
begins, with the loss.
"""

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from . import flight
from .device import Cpu, Cuda
from .model import Hook, trains
from .own_work import Span, blocked, issued_s, own_work, without_blocking

REST = "rest"


class Phases:
    """The phases of the steps from now on, in this thread."""

    def __init__(self, device: Cpu | Cuda, model: nn.Module | None, steps: int) -> None:
        """
        Args:
            model: whose calls are forwards; None: they count in the rest.
            steps: that are timed. The one that goes on is none of them.
        """
        self._device, self._steps = device, steps
        self._thread = threading.get_ident()
        self._open: list[str] = []
        self._marks: list[tuple[str, float, Any]] = []
        """Where a phase ended, by the host's clock and by the device's."""
        self._timed: list[tuple[list[tuple[str, float, Any]], list[Span], list[float]]] = []
        self._start_ns = 0
        self._waits = blocked()
        self._waited = self._waits.__enter__()
        if model is not None:
            model.register_forward_pre_hook(Hook(lambda *_: self.enter("forward") if trains() else None))
        torch.autograd.backward = self._backward(torch.autograd.backward)
        if engines := sys.modules.get("deepspeed.runtime.engine"):
            engines.DeepSpeedEngine.backward = self._backward(engines.DeepSpeedEngine.backward)  # reduces after torch's

    @property
    def made(self) -> int:
        """How many steps have been timed."""
        return len(self._timed)

    @property
    def complete(self) -> bool:
        return self.made == self._steps

    @contextmanager
    def within(self, phase: str) -> Iterator[None]:
        self.enter(phase)
        try:
            yield
        finally:
            self.leave(phase)

    def enter(self, phase: str) -> None:
        if threading.get_ident() == self._thread:
            self._mark()
            if self._open[-1:] == ["forward"]:
                self._open.pop()
            self._open.append(phase)

    def leave(self, phase: str) -> None:
        if threading.get_ident() == self._thread and phase in self._open:
            self._mark()
            while self._open.pop() != phase:  # forward without a backward
                pass

    def step_ended(self) -> None:
        if self._start_ns:
            self._mark()
            (_, start_s, _), *_ = self._marks
            issued = issued_s(flight.collectives_since(self._start_ns), start_s, self._start_ns)
            self._timed.append((self._marks, list(self._waited), issued))
        self._waited.clear()
        self._start_ns, self._marks = time.time_ns(), []
        self._mark()

    def record(self) -> dict[str, Any]:
        """The fields of `RankOk`. The device has no more work."""
        times_s: dict[str, list[float]] = defaultdict(lambda: [0.0] * self._steps)
        own_s: dict[str, list[float]] = defaultdict(lambda: [0.0] * self._steps)
        unknown = set[str]()
        for step, (marks, waits, issued) in enumerate(self._timed):
            spans = [(name, (since, until)) for (_, since, _), (name, until, _) in pairwise(marks)]
            for (_, _, since), (name, _, until) in pairwise(marks):
                times_s[name][step] += self._device.between_s(since, until)
            times_s["total"][step] = sum(each[step] for name, each in times_s.items() if name != "total")
            known = without_blocking(spans, issued) if issued else []
            unknown |= {name for name, _ in spans} - {name for name, _ in known}
            on_host = isinstance(self._device, Cpu)
            work_s = own_work(known, waits, issued) if on_host else {name: times_s[name][step] for name, _ in known}
            for name, one_s in work_s.items():
                own_s[name][step] = one_s
        times_s[REST]
        return {
            "phase_times_s": times_s,
            "own_work_s": {name: each for name, each in own_s.items() if name not in unknown},
        }

    def _mark(self) -> None:
        self._marks.append((self._open[-1] if self._open else REST, time.perf_counter(), self._device.mark()))

    def _backward(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def backward(*args: Any, **kwargs: Any) -> Any:
            with self.within("bwd"):
                return call(*args, **kwargs)

        return backward
