"""What a step of a script is: from the end of one optimizer step to the end of the next.

Where a script has several optimizers, as a GAN has two and a step that is fused into backward has one for each
parameter, a step ends when each of them has stepped again.
"""

import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

LEFT_BEHIND = 64
"""Steps of one optimizer after which another one that did not step meanwhile is of an earlier part of the script. The
discriminator of a GAN takes some 5 for each of the generator's."""


class Steps:
    """Finds the ends of steps in the calls of optimizers.

    Args:
        ended: called at the end of each step; whether a gradient scaler skipped it.
        restarted: called when another optimizer steps for the first time: what was taken for steps were parts.
    """

    def __init__(self, ended: Callable[[bool], None], restarted: Callable[[], None]) -> None:
        self._ended, self._restarted = ended, restarted
        self._known: dict[int, weakref.ref[Any]] = {}
        self._since = Counter[int]()
        self._within: list[int] = []
        self.calls = 0
        """How often an optimizer has stepped."""

    @property
    def optimizers(self) -> list[Any]:
        """Those that have stepped and still exist."""
        return [one for ref in self._known.values() if (one := ref()) is not None]

    def enter(self, optimizer: Any) -> None:
        self._within.append(id(optimizer))

    def leave(self, optimizer: Any, *, skipped: bool = False) -> None:
        """An optimizer inside another, as in an engine, makes no step of its own."""
        key = id(optimizer)
        if key in self._within:  # what is above it has raised
            del self._within[self._within.index(key) :]
        self.calls += 1
        if not self._within:
            self.stepped(optimizer, skipped=skipped)

    def stepped(self, optimizer: Any, *, skipped: bool = False) -> None:
        key = id(optimizer)
        if key not in self._known:
            self._known[key] = weakref.ref(optimizer, lambda _: self._known.pop(key, None))
            if len(self._known) > 1:  # a step ends here, with one more optimizer than it seemed to have
                self._since.clear()
                self._restarted()
                return
        self._since[key] += 1
        if self._since.keys() >= self._known.keys():
            self._since.clear()
            self._ended(skipped)
        elif self._since[key] >= LEFT_BEHIND:
            for other in self._known.keys() - self._since.keys():
                del self._known[other]
            self._since.clear()
            self._restarted()
