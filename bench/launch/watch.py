"""Waits for an attempt: beats, time limit, and what is known when a launch ends before its ranks have spoken."""

import re
import time
from collections.abc import Callable
from pathlib import Path

from bench import processes, spool
from bench.spool import Beat

POLL_S = 0.1
BEAT_EVERY_S = 0.2

OnBeat = Callable[[Beat], None]


class Watch:
    """Calls ``on_beat`` with the slowest rank's beat, and knows when time is up."""

    def __init__(self, folder: Path, world_size: int, timeout_s: float, on_beat: OnBeat) -> None:
        self.folder, self.world_size, self.on_beat = folder, world_size, on_beat
        self.deadline = time.monotonic() + timeout_s
        self._next_beat = 0.0

    def pause(self) -> bool:
        """Sleep for a moment; True when the time limit has passed."""
        time.sleep(POLL_S)
        now = time.monotonic()
        if now >= self._next_beat:
            self._next_beat = now + BEAT_EVERY_S
            beats = [beat for rank in range(self.world_size) if (beat := spool.read_beat(self.folder, rank))]
            if beats:
                self.on_beat(min(beats, key=_progress))
        return now >= self.deadline


def _progress(beat: Beat) -> tuple[int, int]:
    order = ("start", "compile", "setup", "walk", "warmup", "measure", "phases", "done")
    return (order.index(beat.phase) if beat.phase in order else -1, beat.step)


# torchrun's summary, one block per failed worker.
_WORKER = re.compile(r"rank\s*:\s*(\d+) .*?\n\s*exitcode\s*:\s*(-?\d+)", re.DOTALL)
_CALLED_PROCESS = re.compile(r"died with <Signals\.(\w+)")


def cause_of_death(launcher_returncode: int, log: str) -> str:
    """Why a launch ended, in words: the launcher's own end, or the rank that its log blames."""
    if launcher_returncode < 0:
        return f"accelerate launch was killed by {_signal(launcher_returncode)}"
    if (block := log.rfind("Root Cause")) >= 0:
        worker = _WORKER.search(log, block)
        if worker is not None:
            rank, code = int(worker[1]), int(worker[2])
            how = f"was killed by {_signal(code)}" if code < 0 else f"ended with exit code {code}"
            return f"the process of rank {rank} {how}"
    if single := _CALLED_PROCESS.search(log):
        return f"the process of rank 0 was killed by {single[1]}"
    last = log.strip().splitlines()[-1] if log.strip() else "its log is empty"
    return f"accelerate launch ended with exit code {launcher_returncode}: {last[:300]}"


def _signal(returncode: int) -> str:
    return processes.signal_name(-returncode)
