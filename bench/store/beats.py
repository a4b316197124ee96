"""How far each rank is: `rank<N>.beat`, which the rank writes and bench reads."""

import os
import time
from pathlib import Path
from typing import NamedTuple

from bench.records.base import Frozen
from bench.records.phases import Stage

LINE_BYTES = 64
"""Of the file of beats."""


class Beat(Frozen):
    """How far a rank is."""

    phase: str
    """The `Stage`; another word when a foreign program has written to the file."""
    step: int
    steps: int
    """Steps of this stage; 0 when it has none."""
    collective: int = 0
    """Sequence number of the newest collective of the default group; 0 before the first. Up to a second old."""


class Entry(NamedTuple):
    """A rank enters a stage."""

    stage: Stage
    at_s: float
    """``time.monotonic()``, which all processes of a machine share."""


class BeatFile:
    """Writes a rank's beats: one small write each, so that it can be called inside a timed window. The first beat of a
    stage also writes when the rank entered it."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._file = os.open(folder / f"rank{rank}.beat", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        self._collective = 0
        self._entered: list[Stage] = []
        self.at: tuple[Stage, int, int] = (Stage.START, 0, 0)
        """The stage, the step, and how many steps the stage has."""

    def __call__(self, stage: Stage, step: int = 0, steps: int = 0) -> None:
        self.at = (stage, step, steps)
        self._write()
        if stage not in self._entered[-1:]:
            self._entered.append(stage)
            self._line(len(self._entered), f"{stage} {time.monotonic():.9f}")

    @property
    def stage(self) -> Stage:
        return self.at[0]

    def collective(self, number: int) -> None:
        """Report the number of collectives, when it has changed."""
        if number != self._collective:
            self._collective = number
            self._write()

    def _write(self) -> None:
        stage, step, steps = self.at
        self._line(0, f"{stage} {step} {steps} {self._collective}")

    def _line(self, number: int, text: str) -> None:
        os.pwrite(self._file, text.ljust(LINE_BYTES - 1).encode() + b"\n", number * LINE_BYTES)


def read_beat(folder: Path, rank: int) -> Beat | None:
    try:
        newest, *_ = _beat_lines(folder, rank)
        phase, *numbers = newest.split()
        step, steps, collective = map(int, numbers)
    except (OSError, ValueError):
        return None
    return Beat(phase=phase, step=step, steps=steps, collective=collective)


def read_entries(folder: Path, rank: int) -> list[Entry]:
    """The stages that a rank has entered, in order; empty when a foreign program has written to the file."""
    try:
        _, *lines = _beat_lines(folder, rank)
        return [Entry(Stage(stage), float(at)) for stage, at in map(str.split, lines)]
    except (OSError, ValueError):
        return []


def _beat_lines(folder: Path, rank: int) -> list[str]:
    return (folder / f"rank{rank}.beat").read_text().splitlines()
