"""What a step of a script is: from the end of one optimizer step to the end of the next.

Where a script has several optimizers, as a GAN has two and a step that is fused into backward has one for each
parameter, a step ends when each of them has stepped again.
"""

import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from .model import parameters_of

LEFT_BEHIND = 64
"""Steps of one optimizer after which another one that did not step meanwhile is of an earlier part of the script. The
discriminator of a GAN takes some 5 for each of the generator's."""


class Steps:
    """Finds the ends of steps in the calls of optimizers.

    Args:
        ended: called at the end of each step; whether a gradient scaler skipped it, on the device if only that knows.
        restarted: called when another optimizer steps for the first time: what was taken for steps were parts.
    """

    def __init__(self, ended: Callable[[bool | Tensor], None], restarted: Callable[[], None]) -> None:
        self._ended, self._restarted = ended, restarted
        self._known: dict[int, _Known] = {}
        self._gone: list[_Known] = []
        self._since = Counter[int]()
        self._depth = 0
        """How many optimizers are stepping: one may step others, as in an engine."""
        self._steps = 0
        self.calls = 0
        """How often an optimizer has stepped."""

    @property
    def optimizers(self) -> list[Any]:
        """Those that have stepped and still exist."""
        return [one for known in self._known.values() if (one := known.optimizer()) is not None]

    def enter(self) -> None:
        """An optimizer begins its step. `leave` or `fail` ends it."""
        self._depth += 1

    def fail(self) -> None:
        """It raised."""
        self._depth -= 1

    def leave(self, optimizer: Any, *, skipped: bool | Tensor = False) -> None:
        """An optimizer inside another makes no step of its own."""
        self._depth -= 1
        self.calls += 1
        if not self._depth:
            self.stepped(optimizer, skipped=skipped)

    def stepped(self, optimizer: Any, *, skipped: bool | Tensor = False) -> None:
        key = id(optimizer)
        if key not in self._known:
            first = next(map(weakref.ref, parameters_of(optimizer)), None)
            new = _Known(weakref.ref(optimizer, lambda _: self._end_of(key)), first, self._steps)
            self._known[key] = new
            others = len(self._known) > 1 or self._gone  # otherwise it is the script's first
            if others and not self._replaces(new):  # a step ends here, with another optimizer than it seemed to have
                self._since.clear()
                self._restarted()
                return
        self._since[key] += 1
        if self._since.keys() >= self._known.keys():
            self._since.clear()
            self._steps += 1
            self._ended(skipped)
        elif self._since[key] >= LEFT_BEHIND:
            for other in self._known.keys() - self._since.keys():
                del self._known[other]
            self._since.clear()
            self._restarted()

    def _end_of(self, key: int) -> None:
        if known := self._known.pop(key, None):
            self._gone.append(known)

    def _replaces(self, new: "_Known") -> bool:
        """Whether it takes the place of one that is gone: one that stepped the same parameters, as where each epoch
        makes its optimizer, or that existed for one step of others, as the inner ones of meta-learning do."""
        inner = len(self._known) > 1
        for gone in self._gone:
            same = gone.parameter is not None and new.parameter is not None and gone.parameter() is new.parameter()
            if same or (inner and self._steps - gone.since <= 1):
                self._gone.remove(gone)
                return True
        return False


class _Known(NamedTuple):
    """An optimizer that has stepped."""

    optimizer: weakref.ref[Any]
    parameter: weakref.ref[Any] | None
    """The first that it steps."""
    since: int
    """Steps before its first."""
