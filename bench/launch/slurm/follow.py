"""Keeps jobs at work on a run until everything is measured: submits, watches, replaces what is lost."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bench.launch.slurm import client
from bench.launch.slurm.client import ControllerUnavailable, JobStatus, RequestRejected
from bench.launch.slurm.job_end import (
    DONE,
    GOES_ON,
    REFUSED,
    close,
    end_jobs,
    job_end_of,
    job_in_words,
    never_runs,
    tail,
)
from bench.launch.slurm.script import request_of
from bench.store import claims, jobs, spool
from bench.store.jobs import JobEnd, JobFolder

SOON_S, LATER_S = 2.0, 10.0
"""Between two calls of squeue: in the first half minute after something happened, and then."""
LIVELY_S = 30.0
POLL_S = 0.5
MAX_FRUITLESS_JOBS = 2
"""So many jobs in a row that were lost and brought nothing: a third would do no better. One bad node is enough."""


class Show(Protocol):
    """What the user is told."""

    def note(self, text: str) -> None:
        """What stays: a job waits, runs, ended."""

    def relay(self, line: str) -> None:
        """A line that bench wrote in a job."""

    def status(self, text: str) -> None:
        """What is so now."""


class NeverRuns(Exception):
    """The request can never run, for Slurm's reason."""


class Cancelled(Exception):
    """The user had another bench cancel the jobs."""


class GivesUp(Exception):
    """Jobs end without a result, for a reason that is not the attempts'."""


@dataclass
class Followed:
    """A job that is followed: how Slurm sees it, what of its log was read, and for how long nothing has moved."""

    folder: JobFolder
    seen: JobStatus | None = None
    moved_s: float = field(default_factory=time.monotonic)
    _read: int = 0
    """Bytes of its log."""
    _was: object = None

    def look(self, seen: JobStatus | None) -> None:
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


class Following:
    """The jobs of one run.

    Args:
        root: the run folder, absolute.
        name: of its jobs.
        script: for each of them.
        wanted: how many work at a time.
        is_finished: whether the run holds all that the command asks for, as far as that is known.
    """

    def __init__(
        self, root: Path, name: str, script: str, wanted: int, show: Show, is_finished: Callable[[], bool]
    ) -> None:
        self._is_finished = is_finished
        self.root, self.name, self.script, self.wanted, self.show = root, name, script, wanted, show
        self._jobs: dict[str, Followed] = {}
        self._doubted = set[str]()
        self._fruitless, self._asked_s, self._stirred_s = 0, 0.0, 0.0
        self._doubtful_s: float | None = None
        """When sbatch had no answer: Slurm may have taken the job."""
        self._away = self._cancelled = False
        self._enough = False
        """No job that ends is replaced."""

    def run(self) -> list[str]:
        """Until nothing is left to measure. Returns what bench wrote last where it refused the matrix; else nothing.

        Raises:
            RequestRejected, NeverRuns, Cancelled, GivesUp: see there. No job of this command waits or runs then.
        """
        self._adopt()
        try:
            while self.wanted > 0 or self._jobs:
                self._submit()
                self._look()
                for number in list(self._jobs):
                    if words := self._end(number):
                        return words
                time.sleep(POLL_S)
            if self._cancelled:
                raise Cancelled
        except (RequestRejected, NeverRuns, GivesUp):
            self._withdraw(self._ours())
            raise
        return []

    def cancel(self) -> None:
        """End all jobs, because the user asks for it."""
        end_jobs(self.root, list(self._jobs))
        self._jobs.clear()

    def _withdraw(self, numbers: list[str]) -> None:
        """End jobs that cannot succeed. If Slurm does not answer, they end by themselves: each finds a note of it."""
        with suppress(ControllerUnavailable):
            end_jobs(self.root, numbers)
        for number in numbers:
            del self._jobs[number]

    def _ours(self) -> list[str]:
        return [number for number, job in self._jobs.items() if job.is_of(self.script)]

    def _works(self) -> bool:
        """Whether a job of this command runs."""
        return any(self._jobs[number].runs() for number in self._ours())

    @property
    def living(self) -> list[str]:
        return list(self._jobs)

    def _adopt(self) -> None:
        """Follow the jobs that an earlier bench, or the user by hand, has submitted for this run."""
        while True:
            try:
                for number in self._others():
                    self.show.note(f"job {number} of an earlier command goes on")
                    if (job := self._follow(number)).is_of(self.script):
                        self.script = job.folder.submitted() or self.script  # of the command that this one goes on with
                self._close_others()
                return
            except ControllerUnavailable as error:
                self._is_away(error)
                time.sleep(SOON_S)

    def _others(self) -> list[str]:
        """Jobs of this name that are not followed. One that was given up may take a moment to leave Slurm's list."""
        new = (number for number in client.living(self.name) if number not in self._jobs)
        return [number for number in new if jobs.of_run(self.root, number).job_end() is None]

    def _close_others(self) -> None:
        """Jobs that ended while nobody watched: what they had begun is lost. One that lives goes on."""
        for number in jobs.open_ones(self.root):
            if number in self._jobs:
                continue
            job = jobs.of_run(self.root, number)
            if job_end := job_end_of(client.look([number]).get(number), job.end(), float("inf")):
                close(self.root, job, job_end)
            else:
                self._follow(number)

    def _submit(self) -> None:
        """Ask for the jobs that are missing. If Slurm refuses, those that are there go on."""
        if self._doubtful_s is not None and not self._is_sure():
            return
        while len(self._jobs) < self.wanted:
            file = self.root / "slurm" / "script.sh"
            file.parent.mkdir(parents=True, exist_ok=True)
            spool.write_text(file, self.script)
            try:
                number = client.submit(file, file.parent / "%j.out")
            except ControllerUnavailable as error:
                self._is_away(error)
                self._doubtful_s = time.monotonic()
                return
            except RequestRejected as error:
                if not self._jobs:
                    raise
                self._continue_with_fewer(str(error))
                return
            self._is_ours(number)

    def _is_sure(self) -> bool:
        """After a silence of sbatch: wait for a moment, then follow the job that Slurm has taken all the same."""
        if self._doubtful_s is None or time.monotonic() - self._doubtful_s < LATER_S:
            return False
        try:
            for number in self._others():
                self._is_ours(number)
        except ControllerUnavailable as error:
            self._is_away(error)
            self._doubtful_s = time.monotonic()
            return False
        self._doubtful_s = None
        return True

    def _is_ours(self, number: str) -> None:
        job = self._follow(number).folder
        job.folder.mkdir(exist_ok=True)
        spool.write_text(job.script, self.script)
        self.show.note(f"job {number} is submitted")

    def _continue_with_fewer(self, why: str) -> None:
        self.wanted = len(self._jobs)
        self.show.note(f"no other job: {why}")

    def _follow(self, number: str) -> Followed:
        self._stirred_s = time.monotonic()
        self._jobs[number] = Followed(jobs.of_run(self.root, number))
        return self._jobs[number]

    def _has_results(self, number: str) -> bool:
        """Whether a job has left results: those of other jobs, also of before in its cells, say nothing of its node."""
        script = jobs.of_run(self.root, number).script
        submitted_s = script.stat().st_mtime if script.exists() else 0.0
        cells = claims.ever_owned_by(self.root, number)
        results = (file for cell in cells for file in (self.root / "attempts" / cell).glob("b*/result.json"))
        return any(file.stat().st_mtime >= submitted_s for file in results)

    def _look(self) -> None:
        """Ask Slurm for all jobs at once."""
        now = time.monotonic()
        if now - self._asked_s < (SOON_S if now - self._stirred_s < LIVELY_S else LATER_S):
            return
        if not self._jobs:
            return
        self._asked_s = now
        try:
            seen = client.look(list(self._jobs))
        except ControllerUnavailable as error:
            self._is_away(error)
            return
        if self._away:
            self._away = False
            self.show.note("Slurm's controller answers again")
        for number, job in list(self._jobs.items()):
            before = job.seen
            job.look(seen.get(number))
            self._tell(number, before, job.seen)
        self.show.status(", ".join(job_in_words(number, job.seen) for number, job in self._jobs.items()))

    def _is_away(self, error: ControllerUnavailable) -> None:
        self._asked_s = time.monotonic()
        if not self._away:
            self._away = True
            self.show.note(f"Slurm's controller does not answer; jobs go on: {error}")

    def _tell(self, number: str, before: JobStatus | None, now: JobStatus | None) -> None:
        if now is None:
            return
        if before is None or (before.state, before.reason) != (now.state, now.reason):
            self._stirred_s = time.monotonic()
            if now.living and now.state != "COMPLETING":
                self.show.note(job_in_words(number, now))
        if before is None or before.reason != now.reason or (reason := never_runs(now)) is None:
            return  # the first reason may be a provisional one
        if now.reason in client.NODES_AWAY and client.nodes_are_away(number):
            if number not in self._doubted:
                self._doubted.add(number)
                self.show.note(f"job {number} may never run: {reason}; nodes of its partition are out of service")
            return
        words = f"job {number} can never run: {reason}"
        if not self._jobs[number].is_of(self.script):
            self.show.note(f"{words}; it is of another command, which has to end it")
            del self._jobs[number]
        elif len(self._jobs) == 1:
            raise NeverRuns(words)
        else:
            self._withdraw([number])
            self._continue_with_fewer(words)

    def _relay(self, job: Followed) -> None:
        for line in job.new_lines():
            self.show.relay(line)

    def _end(self, number: str) -> list[str]:
        """See whether a job is over, and what follows. Returns bench's last words where it refused the matrix."""
        if (job := self._jobs.get(number)) is None:  # the end of another one has ended it
            return []
        self._relay(job)
        if (noted := job.folder.job_end()) is not None and noted.asked:
            del self._jobs[number]
            self._cancelled, self._enough, self.wanted = True, True, 0
            self.show.note(f"job {number} is cancelled")
            return []
        job.look(job.seen)
        end = job.folder.end()
        if self._away and end is None:
            return []
        job_end = job_end_of(job.seen, end, job.still_s()) if job.seen is not None or job.still_s() > LIVELY_S else None
        if job_end is None:
            return []
        self._relay(job)
        del self._jobs[number]
        self._stirred_s = time.monotonic()
        marked = close(self.root, job.folder, job_end)
        return self._after(job, job_end, marked=marked > 0)

    def _after(self, job: Followed, job_end: JobEnd, *, marked: bool) -> list[str]:
        """What follows the end of a job, which is followed no more."""
        number, ours = job.folder.id, job.is_of(self.script)
        if job_end.state == REFUSED and ours:
            words = tail(job.folder) or [f"bench ended with exit code 2 in job {number}"]
            if not self._works():
                self._withdraw(self._ours())
                return words
            # Its node may be unlike theirs.
            self._continue_with_fewer(f"job {number} ended with exit code 2: {words[-1]}")
        elif job_end.state == DONE and ours:
            self.wanted = max(self.wanted - 1, 0)
        elif not self._enough:
            self.wanted = max(self.wanted, 1)  # jobs that are done may have left cells to this one
        if job_end.state == DONE and self._is_finished():
            self._wind_up()
        if job_end.state == GOES_ON:
            self.show.note(f"the time of job {number} is over: another one goes on")
        elif job_end.state == REFUSED and not ours:
            self.show.note(f"job {number}, of another command, ended with exit code 2")
        elif job_end.state not in (DONE, REFUSED):
            self._is_lost(job, job_end, marked=marked)
        return []

    def _wind_up(self) -> None:
        """All is measured: jobs that have not begun would wait for nothing."""
        self._enough, self.wanted = True, 0
        idle = [number for number in self._ours() if self._jobs[number].folder.alive() is None]
        for number in idle:
            self.show.note(f"all is measured: job {number} is not needed")
        self._withdraw(idle)

    def _is_lost(self, job: Followed, job_end: JobEnd, *, marked: bool) -> None:
        number, why = job.folder.id, f": {job_end.reason}" if job_end.reason else ""
        self.show.note(f"job {number} ended with {job_end.state}{why}")
        self._fruitless = 0 if marked or self._has_results(number) else self._fruitless + 1
        if self._fruitless < MAX_FRUITLESS_JOBS:
            return
        last = " | ".join(tail(job.folder))
        words = f"{MAX_FRUITLESS_JOBS} jobs in a row ended without a result, the last one with {job_end.state}: {last}"
        if not self._works():
            raise GivesUp(words)
        self._continue_with_fewer(words)
