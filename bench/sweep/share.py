"""The part of a run that one process measures, where several share its folder, and how long it may take."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from bench.store.jobs import OUT_OF_TIME

MARGIN = 1.5
"""An attempt may take so many times as long as the longest one before it."""


class OutOfTime(SystemExit):
    """The time of this process ends too soon for another attempt."""

    def __init__(self) -> None:
        super().__init__(OUT_OF_TIME)


@dataclass(frozen=True, kw_only=True)
class Share:
    """By default: everything, without a limit."""

    takes: Callable[[str], bool] = lambda _: True
    """Claims a cell, by its slug; False: another process measures it."""
    holds: Callable[[str], bool] = lambda _: True
    """Whether a cell, by its slug, is still this process's."""
    left_s: Callable[[], float | None] = lambda: None
    """How long this process may still run; None: no limit is known."""
    is_ending: Callable[[], bool] = lambda: False
    """Whether this process is being ended from outside."""
    began: datetime | None = None
    """When the command began of which this process measures a part."""
    _took_s: list[float] = field(default_factory=lambda: [0.0], init=False)

    def took(self, wall_s: float) -> None:
        """An attempt has taken so long."""
        self._took_s[0] = max(self._took_s[0], wall_s)

    def check_time(self) -> None:
        """Raises OutOfTime if the next attempt would not end in time. The first one begins in any case."""
        if self._took_s[0] and (left_s := self.left_s()) is not None and left_s < MARGIN * self._took_s[0]:
            raise OutOfTime

    def check_claim(self, cell: str) -> None:
        """SystemExit if another process has taken this one for dead, and measures the cell."""
        if not self.holds(cell):
            raise SystemExit(143)

    def check_failure(self, silent: Sequence[str], note: Callable[[str], None]) -> None:
        """An attempt failed. If its machine is going away, that is no result: SystemExit, and it stays unfinished.

        Args:
            silent: its nodes that are gone.
            note: receives what the user should know.
        """
        if silent:
            note(f"node {', '.join(silent)} does not answer: this run leaves its job")
        if silent or self.is_ending():
            raise SystemExit(143)
