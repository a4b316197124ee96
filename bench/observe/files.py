"""The files that an observed rank leaves in the attempt's folder, in the forms of bench/store."""

import json
import os
import time
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from .beats import BeatFile

VARIABLE = "BENCH_OBSERVE"
PATIENCE_S = 120.0
"""How long a rank waits for the results of the others before it ends."""


class Settings(NamedTuple):
    """What bench hands over in `VARIABLE`."""

    folder: Path
    warmup_steps: int
    steps: int
    capacity_bytes: int
    """Of the rank on a CPU."""
    phase_steps: int = 0
    """After the measured ones. A script that ends before has no phases."""

    @classmethod
    def read(cls) -> "Settings":
        given = json.loads(os.environ[VARIABLE])
        return cls(**{**given, "folder": Path(given["folder"])})


class RankFiles:
    """The files of one rank."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder, self.rank, self.left = folder, rank, False
        self.has_pulse = False
        """Whether a thread of this process beats for the rank: see pulse.py."""
        self._owner = folder / f"rank{rank}.pid"

    def claim(self) -> bool:
        """Whether this process is the first that has this rank: compilers that a rank starts inherit its number."""
        try:
            with self._owner.open("x") as file:
                file.write(str(os.getpid()))
        except FileExistsError:
            return False
        return True

    def take(self) -> None:
        """This process trains, whichever was the first with its rank."""
        self._owner.write_text(str(os.getpid()))

    def trains(self) -> None:
        """This process has made a step with its rank."""
        self._trainer.touch()

    def leave(self) -> None:
        """This process has another rank now."""
        self.left = True
        self._trainer.unlink(missing_ok=True)

    @property
    def _trainer(self) -> Path:
        return self.folder / f"rank{self.rank}.trainer.{os.getpid()}"

    @property
    def trainers(self) -> int:
        """Processes that have."""
        return len(self._trainers_of(self.rank))

    @property
    def is_ours(self) -> bool:
        try:
            return self._owner.read_text() == str(os.getpid())
        except OSError:  # the folder is gone
            return False

    @cached_property
    def beat(self) -> BeatFile:
        """Written by the thread beside the steps: these must not wait for a file."""
        return BeatFile(self.folder, self.rank, at_once=False)

    def outcome(self, record: dict[str, Any]) -> None:
        """Write `rank<N>.json`, once."""
        if not (file := self.folder / f"rank{self.rank}.json").exists():
            write(file, record)

    def ended_early(self, steps: int, warmup: int, restarts: int) -> None:
        record = {"steps": steps, "warmup": warmup, "restarts": restarts}
        write(self.folder / f"rank{self.rank}.early", record)

    def wait_for_others(self, world_size: int) -> None:
        """A rank that ends takes the connections with it that others may still need to end their step. One that made no
        step never ends by itself."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until and any(map(self._still_steps, range(world_size))):
            time.sleep(0.02)

    def _still_steps(self, rank: int) -> bool:
        ended = any((self.folder / f"rank{rank}.{ending}").exists() for ending in ("json", "early"))
        return not ended and bool(self._trainers_of(rank))

    def _trainers_of(self, rank: int) -> list[Path]:
        """A file for each process that has made a step with this rank."""
        return list(self.folder.glob(f"rank{rank}.trainer.*"))


def writable(text: str) -> str:
    """With characters escaped that UTF-8 cannot encode, as of a file's name."""
    return text.encode("utf-8", "backslashreplace").decode()


def write(path: Path, record: dict[str, Any]) -> None:
    """Atomically: nobody reads a part."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    with aside.open("w") as file:
        json.dump(record, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
