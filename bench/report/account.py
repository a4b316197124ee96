"""Where the wall time of attempts went. Pure."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from bench.records.account import Account
from bench.records.outcome import Result
from bench.records.phases import Stage

MEASURED = (Stage.MEASURE, Stage.LARGEST, Stage.PHASES)
"""The parts that are measured steps: the throughput window and the phase window."""


@dataclass(frozen=True)
class Spent:
    """The wall time of the attempts of a cell, added up. Those without an account only count in `attempts`."""

    results: Sequence[Result]
    """Those that bench launched."""

    @cached_property
    def accounts(self) -> list[tuple[float, Account]]:
        """The wall time and the account of each attempt that has one."""
        return [(result.wall_s, result.account) for result in self.results if result.account is not None]

    @property
    def known(self) -> bool:
        return bool(self.accounts)

    @property
    def wall_s(self) -> float:
        """Of the attempts with an account; of all if none has one."""
        return math.fsum([wall_s for wall_s, _ in self.accounts] or [result.wall_s for result in self.results])

    def part_s(self, *parts: str) -> float | None:
        """Seconds in ``parts``; None if no attempt reached any of them."""
        found = [account.parts_s[part] for _, account in self.accounts for part in parts if part in account.parts_s]
        return math.fsum(found) if found else None

    @property
    def not_accounted_s(self) -> float:
        """Seconds in no part, such as those of the last stage of ranks whose end nobody saw."""
        return max(0.0, math.fsum(wall_s - account.accounted_s for wall_s, account in self.accounts))

    @property
    def measured_share(self) -> float:
        """Share of the wall time in measured steps."""
        return (self.part_s(*MEASURED) or 0.0) / self.wall_s if self.wall_s else 0.0


def spent(results: Iterable[Result]) -> Spent:
    """The wall time of those ``results`` that bench launched."""
    return Spent([result for result in results if result.isolation is not None])
