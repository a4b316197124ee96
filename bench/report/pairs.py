"""What the comparison of two runs finds: pairs of attempts, changed outcomes, and what only one run has."""

from dataclasses import dataclass
from typing import Literal

from bench.report.rows import Row
from bench.statistics.launches import Scatter
from bench.statistics.ratio import Ratio
from bench.statistics.tail import Tail
from bench.statistics.verdict import RateRatio, Speed, speed

Space = Literal["SAME", "LESS", "MORE", "UNCLEAR", "n/a"]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One attempt that was measured in both runs."""

    name: str
    base: Row
    head: Row
    ratio: Ratio | None
    """Of the step's time, head to base; None when a run holds too few samples, or none."""
    means: RateRatio
    """Of the mean steps, head to base, by the model of the report's ratios of throughputs."""
    launches_vary: float
    """How many times as long the mean step may be because launches of the same code vary."""
    speed: Speed
    space: Space
    """By the mean of the launches' peaks of allocated memory, of the worst rank of each."""
    unlike: tuple[str, ...]
    """Differences that are no change of the code: machine, environment, regime, threads, isolation."""
    sources: tuple[str, ...] = ()
    """Source files that differ; none where a run does not know its sources."""
    tail: Tail | None = None
    """The slow steps of both; None like ``ratio``."""
    disturbed: str = ""
    """What the machine recorded beside the run with more slow steps, and not beside the other one. It may be why they
    are slow, so the tail decides nothing."""

    @property
    def tail_changed(self) -> bool:
        """Whether the slow steps differ, or are why the verdict is not SAME."""
        return self.tail is not None and (
            self.tail.more
            or self.tail.fewer
            or (self.speed == "UNCLEAR" and bool(self.tail.base.indices or self.tail.head.indices))
        )

    def slower(self, threshold: float) -> bool:
        """Whether the step, or its tail, is longer by more than ``threshold``."""
        tail = None if self.disturbed else self.tail
        return speed(self.ratio, threshold, tail) in ("SLOWER", "SLOWER TAIL")

    def undecided(self, threshold: float) -> bool:
        """Whether it may or may not be longer by ``threshold``."""
        if self.ratio is None:
            return self.speed == "UNCLEAR"
        reaches = self.ratio.alarm[1] > 1 + threshold or self.ratio.of_means > 1 + threshold
        return reaches and not self.slower(threshold)

    def may_hide_a_regression(self, threshold: float) -> bool:
        """Whether it is undecided although the mean step is longer by more than ``threshold``, and by more than
        launches of the same code differ by."""
        return self.undecided(threshold) and self.means.estimate > max(1 + threshold, self.launches_vary)


@dataclass(frozen=True, kw_only=True)
class Changed:
    """An attempt with another outcome in head than in base."""

    name: str
    base: Row
    head: Row


@dataclass(frozen=True, kw_only=True)
class OnlyInOne:
    """An attempt that only one of the runs has."""

    name: str
    run: Literal["base", "head"]
    row: Row
    nearest: str
    """What the other run has instead."""
    cell_gone: bool
    """The other run has no result of its cell."""
    searched: bool
    """Whether one of the runs searched for the batch of this cell. Two searches may try different batches."""


@dataclass(frozen=True, kw_only=True)
class TwoRuns:
    """The comparison of two runs."""

    pairs: tuple[Pair, ...]
    unmeasured: int
    """Attempts with the same outcome in both runs that is not a measurement."""
    changed: tuple[Changed, ...]
    only_in_one: tuple[OnlyInOne, ...]
    noise: float | None
    """Given by the user."""
    scatter: Scatter | None
    """What is known of the scatter between launches."""
    margin: float

    @property
    def unlike(self) -> tuple[str, ...]:
        """All differences between the pairs that are no change of the code."""
        return tuple(dict.fromkeys(difference for pair in self.pairs for difference in pair.unlike))

    @property
    def sources(self) -> tuple[str, ...]:
        """All source files that differ between the pairs."""
        return tuple(sorted({file for pair in self.pairs for file in pair.sources}))

    @property
    def never_measured(self) -> tuple[OnlyInOne, ...]:
        """Attempts that base measured and head should have. A search of head may have left out a batch."""
        return tuple(
            attempt
            for attempt in self.only_in_one
            if attempt.run == "base" and attempt.row.measured and (attempt.cell_gone or not attempt.searched)
        )

    def slower(self, threshold: float) -> list[Pair]:
        """Pairs whose step, or its tail, is longer by more than ``threshold``, with the confidence of an alarm."""
        return [pair for pair in self.pairs if pair.slower(threshold)]

    @property
    def broken(self) -> list[Changed]:
        """Attempts that succeeded in base and fail in head."""
        return [changed for changed in self.changed if changed.base.measured]

    def undecided(self, threshold: float) -> list[Pair]:
        """Pairs whose step may or may not be longer by ``threshold``."""
        return [pair for pair in self.pairs if pair.undecided(threshold)]
