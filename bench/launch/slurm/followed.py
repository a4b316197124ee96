"""One job that a command follows: how Slurm sees it, what of its log was read, and for how long nothing has moved."""

import time
from dataclasses import dataclass, field

from bench.launch.slurm.client import Seen
from bench.launch.slurm.script import request_of
from bench.store.jobs import JobFolder


@dataclass
class Followed:
    folder: JobFolder
    seen: Seen | None = None
    moved_s: float = field(default_factory=time.monotonic)
    _read: int = 0
    """Bytes of its log."""
    _was: object = None

    def look(self, seen: Seen | None) -> None:
        self.seen = seen
        now = (seen and seen.state, self.folder.alive(), self.folder.end())
        if now != self._was:
            self._was, self.moved_s = now, time.monotonic()

    def still_s(self) -> float:
        return time.monotonic() - self.moved_s

    def runs(self) -> bool:
        return self.seen is not None and self.seen.state == "RUNNING" and self.folder.end() is None

    def is_of(self, script: str) -> bool:
        """Whether the command with this script, or the same one before, has submitted it."""
        return request_of(self.folder.submitted()) == request_of(script)

    def new_lines(self) -> list[str]:
        """What bench has written since, in whole lines."""
        try:
            with self.folder.log.open("rb") as log:
                log.seek(self._read)
                text = log.read()
        except OSError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        return whole.decode(errors="replace").splitlines()
