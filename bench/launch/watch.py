"""Watches an attempt: its beats, its time limits, and why a launch ended before its ranks left results."""

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
from bench.store.beats import Beat, read_beat

POLL_S = 0.1
BEAT_EVERY_S = 0.2

OnBeat = Callable[[Beat], None]


@dataclass(frozen=True)
class Limits:
    """How long an attempt may take."""

    timeout_s: float
    """In total."""
    hang_after_s: float | None
    """Without progress. None: derived from the duration of the cell's steps. Imports do not count."""
    set_up_counts: bool = True
    """Whether ``hang_after_s`` applies to `SETTING_UP` too. Building a large model takes long."""


FIRST_STEP_S = 600.0
"""Time limit without progress before the first steps: the model is built, kernels compile, NCCL starts. Also for a
checkpoint."""
LEAST_S, PACES = 60.0, 20.0
"""Time limit without progress after the first steps: PACES times the longest step, but at least LEAST_S."""
SETTING_UP = {Stage.START, Stage.JOIN, Stage.SETUP}
ANSWER_S = 5.0
"""How long ranks have to answer a diagnosis before they are ended."""
ASLEEP_S = 5.0
"""A longer gap between two looks means that bench itself was stopped: the gap counts towards no limit."""


class Watch:
    """Calls ``on_beat`` with the slowest rank's beat, and decides when to end an attempt.

    Progress is any change of any rank's beat: a stage, a step or one more collective. Slow is not hung.
    """

    def __init__(self, folder: Path, world_size: int, limits: Limits, on_beat: OnBeat) -> None:
        self.folder, self.world_size, self.limits, self.on_beat = folder, world_size, limits, on_beat
        self._began_s = self._moved_s = self._awake_s = time.monotonic()
        self._next_beat = 0.0
        self._beats: dict[int, Beat] = {}
        self._stepped_s: float | None = None
        self._pace_s: float | None = None

    def pause(self) -> str | None:
        """Sleep for a moment. Returns the reason to end the attempt, if there is one."""
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
        """The time now. If this process was stopped meanwhile, move the start of every limit by the gap."""
        now = time.monotonic()
        if (gap_s := now - self._awake_s) > ASLEEP_S:
            self._began_s += gap_s
            self._moved_s += gap_s
            if self._stepped_s is not None:
                self._stepped_s += gap_s
        self._awake_s = now
        return now

    def diagnose(self) -> list[Stuck]:
        """Ask the ranks what they are doing, once; returns the answers of the next few seconds."""
        spool.ask_for_diagnosis(self.folder)
        until = time.monotonic() + ANSWER_S
        while True:
            answers = spool.read_stuck(self.folder, self.world_size)
            reported = {one.rank for one in [*answers, *spool.read_ranks(self.folder, self.world_size)]}
            if len(reported) == self.world_size or time.monotonic() > until:
                return answers
            time.sleep(POLL_S)

    def _look(self, now: float) -> None:
        read = ((rank, read_beat(self.folder, rank)) for rank in range(self.world_size))
        beats = {rank: beat for rank, beat in read if beat is not None}
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
            return FIRST_STEP_S  # imports, or a compiler: neither sends beats
        if self.limits.hang_after_s is not None and (self.limits.set_up_counts or not stages & SETTING_UP):
            return self.limits.hang_after_s
        if self._pace_s is None or Stage.CHECKPOINT in stages:  # files are written without a beat
            return FIRST_STEP_S
        return max(LEAST_S, PACES * self._pace_s)


def _is_next_step(before: Beat | None, beat: Beat) -> bool:
    return before is not None and before.phase == beat.phase and before.step < beat.step


def _progress(beat: Beat) -> tuple[int, int]:
    order = list(Stage)
    return (order.index(Stage(beat.phase)) if beat.phase in order else -1, beat.step)


# torchrun's summary: one block per failed worker.
_WORKER = re.compile(r"rank\s*:\s*(\d+) .*?\n\s*exitcode\s*:\s*(-?\d+)", re.DOTALL)
_EXIT_STATUS = re.compile(r"CalledProcessError: .* returned non-zero exit status (\d+)")
_CALLED_PROCESS = re.compile(r"died with <Signals\.(\w+)")


def cause_of_death(launcher_returncode: int, log: str) -> str:
    """Why a launch ended, in words: how the launcher ended, or the rank that its log blames."""
    if launcher_returncode < 0:
        return f"accelerate launch was killed by {_signal(launcher_returncode)}"
    if codes := exit_codes(log):
        rank, code = next(iter(codes.items()))
        how = f"was killed by {_signal(code)}" if code < 0 else f"ended with exit code {code}"
        return f"the process of rank {rank} {how}"
    if single := _EXIT_STATUS.search(log):
        return f"the process of rank 0 ended with exit code {single[1]}"
    last = log.strip().splitlines()[-1] if log.strip() else "its log is empty"
    return f"accelerate launch ended with exit code {launcher_returncode}: {last[:300]}"


def exit_codes(log: str) -> dict[int, int]:
    """The failed ranks in the launcher's log and their exit codes, negative for a signal. The first is the root cause.

    The log lists ranks that failed at about the same time, but none that ended with exit code 0. It also lists ranks
    that the launcher ended itself (SIGTERM); they are left out here.
    """
    if (root := log.rfind("Root Cause")) < 0:
        single = _CALLED_PROCESS.search(log)
        return {0: -signal.Signals[single[1]]} if single else {}
    others = _WORKER.finditer(log, max(0, log.rfind("Failures:", 0, root)), root)
    failed = {int(worker[1]): int(worker[2]) for worker in _WORKER.finditer(log, root)}
    return failed | {int(worker[1]): int(worker[2]) for worker in others if int(worker[2]) != -signal.SIGTERM}


def _signal(returncode: int) -> str:
    return processes.signal_name(-returncode)
