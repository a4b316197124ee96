"""Waits for an attempt: beats, time limit, and what is known when a launch ends before its ranks have spoken."""

import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench import processes
from bench.records.hang import Stuck
from bench.records.phases import Stage
from bench.store import spool
from bench.store.spool import Beat

POLL_S = 0.1
BEAT_EVERY_S = 0.2

OnBeat = Callable[[Beat], None]


@dataclass(frozen=True)
class Limits:
    """How long an attempt may take."""

    timeout_s: float
    """In all."""
    hang_after_s: float | None
    """Without progress; None: by the cell's own pace. Imports do not count."""
    set_up_counts: bool = True
    """Whether that holds for the set-up, too, in which a large model is long in the making."""


FIRST_STEP_S = 600.0
"""Without progress before there is a pace: weights are made, kernels compiled, NCCL started."""
LEAST_S, PACES = 60.0, 20.0
"""After that: so many of the longest step, and never less than this."""
ANSWER_S = 5.0
"""How long ranks have to say where they stand before they are ended."""
ASLEEP_S = 5.0
"""Longer than this between two looks, and bench itself was stopped: what passed meanwhile is held against nobody."""


class Watch:
    """Calls ``on_beat`` with the slowest rank's beat, and knows when to give an attempt up.

    Progress is any change of any rank's beat, be it a stage, a step or one more collective: slow is not hung.
    """

    def __init__(self, folder: Path, world_size: int, limits: Limits, on_beat: OnBeat) -> None:
        self.folder, self.world_size, self.limits, self.on_beat = folder, world_size, limits, on_beat
        self._began_s = self._moved_s = self._awake_s = time.monotonic()
        self._next_beat = 0.0
        self._beats: dict[int, Beat] = {}
        self._stepped_s: float | None = None
        self._pace_s: float | None = None

    def pause(self) -> str | None:
        """Sleep for a moment; why the attempt is to be given up, when it is."""
        time.sleep(POLL_S)
        now = self._wake()
        if now >= self._next_beat:
            self._next_beat = now + BEAT_EVERY_S
            self._look(now)
        if now - self._began_s >= self.limits.timeout_s:
            return f"no result within {self.limits.timeout_s:g} s"
        if now - self._moved_s >= (patience := self._patience_s()):
            return f"no progress for {patience:.0f} s"
        return None

    def _wake(self) -> float:
        """The time, after a look at how long this process itself did not run."""
        now = time.monotonic()
        if (gap_s := now - self._awake_s) > ASLEEP_S:
            self._began_s += gap_s
            self._moved_s += gap_s
            if self._stepped_s is not None:
                self._stepped_s += gap_s
        self._awake_s = now
        return now

    def diagnose(self) -> list[Stuck]:
        """Ask the ranks where they stand, once; returns what they said within a few seconds."""
        spool.ask_for_diagnosis(self.folder)
        until = time.monotonic() + ANSWER_S
        while True:
            found = spool.read_stuck(self.folder, self.world_size)
            spoken = {one.rank for one in [*found, *spool.read_ranks(self.folder, self.world_size)]}
            if len(spoken) == self.world_size or time.monotonic() > until:
                return found
            time.sleep(POLL_S)

    def _look(self, now: float) -> None:
        found = ((rank, spool.read_beat(self.folder, rank)) for rank in range(self.world_size))
        beats = {rank: beat for rank, beat in found if beat is not None}
        if beats != self._beats:
            self._moved_s = now
            if any(_is_next_step(self._beats.get(rank), beat) for rank, beat in beats.items()):
                if self._stepped_s is not None:
                    self._pace_s = max(self._pace_s or 0.0, now - self._stepped_s)
                self._stepped_s = now
            self._beats = beats
        if beats:
            self.on_beat(min(beats.values(), key=_progress))

    def _patience_s(self) -> float:
        stages = {beat.phase for beat in self._beats.values()}
        if not stages or Stage.COMPILE in stages:
            return FIRST_STEP_S  # imports, or another program at work, which does not beat
        if self.limits.hang_after_s is not None and (self.limits.set_up_counts or Stage.SETUP not in stages):
            return self.limits.hang_after_s
        return FIRST_STEP_S if self._pace_s is None else max(LEAST_S, PACES * self._pace_s)


def _is_next_step(before: Beat | None, beat: Beat) -> bool:
    return before is not None and before.phase == beat.phase and before.step < beat.step


def _progress(beat: Beat) -> tuple[int, int]:
    order = list(Stage)
    return (order.index(Stage(beat.phase)) if beat.phase in order else -1, beat.step)


# torchrun's summary, one block per failed worker.
_WORKER = re.compile(r"rank\s*:\s*(\d+) .*?\n\s*exitcode\s*:\s*(-?\d+)", re.DOTALL)
_CALLED_PROCESS = re.compile(r"died with <Signals\.(\w+)")


def cause_of_death(launcher_returncode: int, log: str) -> str:
    """Why a launch ended, in words: the launcher's own end, or the rank that its log blames."""
    if launcher_returncode < 0:
        return f"accelerate launch was killed by {_signal(launcher_returncode)}"
    if codes := exit_codes(log):
        rank, code = next(iter(codes.items()))
        how = f"was killed by {_signal(code)}" if code < 0 else f"ended with exit code {code}"
        return f"the process of rank {rank} {how}"
    last = log.strip().splitlines()[-1] if log.strip() else "its log is empty"
    return f"accelerate launch ended with exit code {launcher_returncode}: {last[:300]}"


def exit_codes(log: str) -> dict[int, int]:
    """The ranks that failed, by what the launcher says in its log, and their exit codes: negative for a signal.

    The first is the one that it blames. It lists what failed at about the same time, but none that ended as if all were
    well; and it asks the others to end (SIGTERM).
    """
    if (root := log.rfind("Root Cause")) < 0:
        single = _CALLED_PROCESS.search(log)
        return {0: -signal.Signals[single[1]]} if single else {}
    others = _WORKER.finditer(log, max(0, log.rfind("Failures:", 0, root)), root)
    failed = {int(worker[1]): int(worker[2]) for worker in _WORKER.finditer(log, root)}
    return failed | {int(worker[1]): int(worker[2]) for worker in others if int(worker[2]) != -signal.SIGTERM}


def _signal(returncode: int) -> str:
    return processes.signal_name(-returncode)
