"""The beats of a rank: `rank<N>.beat`, which bench reads; see bench/store/beats.py."""

import os
import time
from pathlib import Path

LINE_BYTES = 64


class BeatFile:
    """Writes a rank's beats: one small write each, so that it can be called inside a timed window. The first beat of a
    stage also writes when the rank entered it."""

    def __init__(self, folder: Path, rank: int, *, at_once: bool = True) -> None:
        """``at_once``: write every beat, and not only the first of a stage; `write` then writes the others."""
        self._file = os.open(folder / f"rank{rank}.beat", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        self._at_once = at_once
        self._collective = 0
        self._entered: list[str] = []
        self._written = ""
        self.at: tuple[str, int, int] = ("start", 0, 0)
        """The stage, the step, and how many steps the stage has."""

    def __call__(self, stage: str, step: int = 0, steps: int = 0) -> None:
        self.at = (stage, step, steps)
        new = stage not in self._entered[-1:]
        if new or self._at_once:
            self.write()
        if new:
            self._entered.append(stage)
            self._line(len(self._entered), f"{stage} {time.monotonic():.9f}")

    @property
    def stage(self) -> str:
        return self.at[0]

    def collective(self, number: int) -> None:
        """Report the number of collectives."""
        self._collective = number
        self.write()

    def write(self) -> None:
        """Write the newest beat, unless it is written."""
        stage, step, steps = self.at
        if (text := f"{stage} {step} {steps} {self._collective}") != self._written:
            self._written = text
            self._line(0, text)

    def _line(self, number: int, text: str) -> None:
        os.pwrite(self._file, text.ljust(LINE_BYTES - 1).encode() + b"\n", number * LINE_BYTES)
