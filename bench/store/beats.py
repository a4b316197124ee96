"""How far each rank is: bench reads `rank<N>.beat`, which bench/observe/beats.py writes."""

from pathlib import Path
from typing import NamedTuple

from bench.records.base import Frozen
from bench.records.phases import Stage


class Beat(Frozen):
    """How far a rank is."""

    phase: str
    """The `Stage`; another word when a foreign program has written to the file."""
    step: int
    steps: int
    """Steps of this stage; 0 when it has none."""
    collective: int = 0
    """Collectives that the rank has issued in all of its process groups. Up to a second old."""


class Entry(NamedTuple):
    """A rank enters a stage."""

    stage: Stage
    at_s: float
    """``time.monotonic()``, which all processes of a machine share."""


def read_beat(folder: Path, rank: int) -> Beat | None:
    try:
        newest, *_ = _beat_lines(folder, rank)
        phase, *numbers = newest.split()
        step, steps, collective = map(int, numbers)
    except (OSError, ValueError):
        return None
    return Beat(phase=phase, step=step, steps=steps, collective=collective)


def last_stage(folder: Path, rank: int) -> str:
    """The stage that a rank has reached, by its beat; the first one without any."""
    beat = read_beat(folder, rank)
    return beat.phase if beat else Stage.START


def read_entries(folder: Path, rank: int) -> list[Entry]:
    """The stages that a rank has entered, in order; empty when a foreign program has written to the file."""
    try:
        _, *lines = _beat_lines(folder, rank)
        return [Entry(Stage(stage), float(at)) for stage, at in map(str.split, lines)]
    except (OSError, ValueError):
        return []


def _beat_lines(folder: Path, rank: int) -> list[str]:
    return (folder / f"rank{rank}.beat").read_text().splitlines()
