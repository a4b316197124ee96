"""All that two runs say of each other: frozen data that `compare` finds and the other modules show."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from bench.report.rows import Row
from bench.report.tables.attempts import REASON_LIMIT, one_line
from bench.statistics.ratio import Ratio, Speed
from bench.units import counted, percent

Space = Literal["SAME", "LESS", "MORE", "n/a"]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One attempt that was measured in both runs."""

    name: str
    base: Row
    head: Row
    ratio: Ratio | None
    """Of the step's time, head to base; None when a run holds too few samples, or none."""
    speed: Speed
    space: Space
    """By peak allocated memory of the worst rank."""
    unlike: tuple[str, ...]
    """In what else they differ that the cell does not say: machine, regime, threads, isolation."""


@dataclass(frozen=True, kw_only=True)
class Changed:
    """An attempt whose outcome is not what it was."""

    name: str
    base: Row
    head: Row


@dataclass(frozen=True, kw_only=True)
class Lone:
    """An attempt that only one run has."""

    name: str
    run: Literal["base", "head"]
    row: Row
    nearest: str
    """What the other run has instead."""
    cell_gone: bool
    """The other run knows nothing of its cell."""
    searched: bool
    """A search over batch ran in its cell, in one of the runs: such pick other batches from run to run."""


@dataclass(frozen=True, kw_only=True)
class TwoRuns:
    """All that two runs say of each other."""

    pairs: tuple[Pair, ...]
    unmeasured: int
    """Attempts that came to the same outcome in both, and it was not a measurement."""
    changed: tuple[Changed, ...]
    lone: tuple[Lone, ...]
    noise: float | None
    margin: float

    @property
    def unlike(self) -> tuple[str, ...]:
        """Every difference between the pairs that is no change of the code."""
        return tuple(dict.fromkeys(difference for pair in self.pairs for difference in pair.unlike))

    @property
    def summary(self) -> str:
        """One line."""
        speeds = [pair.speed for pair in self.pairs]
        spaces = [pair.space for pair in self.pairs]
        n_base = sum(lone.run == "base" for lone in self.lone)
        n_head = len(self.lone) - n_base
        return (
            f"{counted(len(self.pairs), 'attempt')} measured in both runs. Step: {_counts(speeds)}."
            f" Memory: {_counts(spaces)}."
            f" Measured in neither: {self.unmeasured}. Outcome changed: {len(self.changed)}. Only in base: {n_base}."
            f" Only in head: {n_head}."
        )

    def regressions(self, threshold: float) -> list[str]:
        """A sentence for each attempt whose step is longer by more than ``threshold``, or that was ok and is no more.

        The whole interval, that for alarms, has to lie beyond the threshold, whatever the margin calls the same. An
        attempt that head lacks counts unless a search may have left it out.
        """
        slower = [
            f"{pair.name}: its step takes {pair.ratio.estimate:.3f} times as long"
            f" ({pair.ratio.alarm[0]:.3f} to {pair.ratio.alarm[1]:.3f})"
            for pair in self.pairs
            if pair.ratio is not None and pair.ratio.alarm[0] > 1 + threshold
        ]
        broken = [
            f"{changed.name}: was {changed.base.outcome} and is {changed.head.outcome}:"
            f" {one_line(changed.head.reason or '', REASON_LIMIT)}"
            for changed in self.changed
            if changed.base.measured
        ]
        gone = [
            f"{lone.name}: was {lone.row.outcome}, and head has "
            + ("nothing of its cell" if lone.cell_gone else "no such batch")
            for lone in self._never_measured
        ]
        return slower + broken + gone

    @property
    def unmeasured_in_head(self) -> str | None:
        """How many of base's attempts head lacks and ought to have; None where it has all."""
        n = len(self._never_measured)
        return f"{counted(n, 'attempt')} of base never measured in head" if n else None

    @property
    def _never_measured(self) -> list[Lone]:
        alone = [lone for lone in self.lone if lone.run == "base" and lone.row.measured]
        return [lone for lone in alone if lone.cell_gone or not lone.searched]

    def undecided(self, threshold: float) -> str | None:
        """Where a step may be longer by ``threshold`` and may as well not be; None where there is no such attempt."""
        n = sum(
            pair.ratio.alarm[0] <= 1 + threshold < pair.ratio.alarm[1] if pair.ratio else pair.speed == "UNCLEAR"
            for pair in self.pairs
        )
        at = f"{n} of {counted(len(self.pairs), 'attempt')} UNCLEAR at {percent(threshold)}"
        return f"{at}: the gate could not decide there" if n else None


def _counts(verdicts: Iterable[str]) -> str:
    return ", ".join(f"{count} {verdict}" for verdict, count in Counter(verdicts).most_common()) or "none"
