"""The protocol of what runs attempts, what it gets and what it returns."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bench.launch.watch import Limits, OnBeat
from bench.records.cell import Cell
from bench.records.hang import Stuck
from bench.records.machine import Hardware
from bench.records.outcome import Isolation
from bench.records.rank_outcome import RankOutcome
from bench.records.script import ScriptEnd


@dataclass(frozen=True, kw_only=True)
class LaunchResult:
    """What the ranks of one attempt left; `diagnosis.classify` derives the outcome from it."""

    ranks: Sequence[RankOutcome]
    """At most one per rank; a rank that left nothing is missing."""
    isolation: Isolation
    cancelled: str | None = None
    """Why bench ended the attempt, if it did: no progress, or the time limit."""
    stuck: Sequence[Stuck] = ()
    """What the ranks were doing then."""
    launcher_error: str | None = None
    """Why the launch ended, if it did so before its ranks left their results."""
    silent: Sequence[str] = ()
    """Nodes that were gone when bench ended the attempt, or gave up its launch."""
    ended_s: float | None = None
    """``time.monotonic()`` when the last process of the attempt had ended; None where that is not known."""
    script: ScriptEnd | None = None
    """How a script ended, which has no ranks that bench knows of."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """What an executor gets from the run."""

    hardware: Hardware
    new_folder: Callable[[], Path]
    """Makes the spool folder of a launch of rank servers."""
    preloads: Mapping[int, Collection[str]]
    """By number of ranks: `bench.backends.preloads` of the cells, which rank servers import before they fork."""
    modules: Sequence[str]
    """Other modules that they import then: the workload's."""
    workload_folder: str | None = None
    """Where they look for these first."""
    folder: str = "."
    """Where a script runs."""
    waiting: Callable[[str], None]
    """Receives what takes time."""
    note: Callable[[str], None]
    """Receives what the user should know."""
    await_memory: Callable[[], None] = lambda: None
    """Returns once this machine's GPUs have back the memory of processes that have ended."""
    note_held: Callable[[int], None] = lambda _: None
    """Receives how many bytes a GPU did not have back in time."""


class Executor(Protocol):
    """Runs one prepared attempt folder at a time."""

    def prepare(self, cell: Cell) -> None:
        """Start what the attempts of ``cell`` need, without waiting for it."""

    def run(self, cell: Cell, folder: Path, limits: Limits, on_beat: OnBeat) -> LaunchResult: ...

    def close(self) -> None:
        """End every process that was started."""
