"""Keeps jobs at work on a run until everything is measured: submits, watches, replaces what is lost."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench.launch.slurm import client
from bench.launch.slurm.client import Away, Refused, Seen
from bench.launch.slurm.fate import DONE, GOES_ON, REFUSED, fate_of, never_runs
from bench.store import claims, jobs, spool, tries
from bench.store.jobs import Fate, JobFolder

SOON_S, LATER_S = 2.0, 10.0
"""Between two calls of squeue: in the first half minute after something happened, and then."""
LIVELY_S = 30.0
POLL_S = 0.5
QUIET_S = 5.0
"""A job is gone when its guard, which beats every second, has been still for this long."""
END_WITHIN_S = 60.0
BARREN = 2
"""So many jobs in a row that were lost and brought nothing: a third would do no better."""


class NeverRuns(Exception):
    """The request can never run, for Slurm's reason."""


class GivesUp(Exception):
    """Jobs end without a result, for a reason that is not the attempts'."""


@dataclass(frozen=True, kw_only=True)
class Show:
    """Where it is said what happens."""

    note: Callable[[str], None]
    """What stays: a job waits, runs, ended."""
    relay: Callable[[str], None]
    """A line that bench wrote in a job."""
    status: Callable[[str], None]
    """What is so now."""


@dataclass
class _Job:
    folder: JobFolder
    results: int
    """How many the run had when the job was first seen."""
    seen: Seen | None = None
    read: int = 0
    """Bytes of its log that were shown."""
    moved_s: float = field(default_factory=time.monotonic)
    _was: object = None

    def look(self, seen: Seen | None) -> None:
        self.seen = seen
        now = (seen and seen.state, self.folder.alive(), self.folder.end())
        if now != self._was:
            self._was, self.moved_s = now, time.monotonic()

    def still_s(self) -> float:
        return time.monotonic() - self.moved_s


class Following:
    """The jobs of one run.

    Args:
        root: the run folder, absolute.
        name: of its jobs.
        script: for each of them.
        wanted: how many work at a time.
    """

    def __init__(self, root: Path, name: str, script: str, wanted: int, show: Show) -> None:
        self.root, self.name, self.script, self.wanted, self.show = root, name, script, wanted, show
        self._jobs: dict[str, _Job] = {}
        self._barren = 0
        self._asked_s = self._stirred_s = 0.0
        self._away = False

    def run(self) -> list[str]:
        """Until nothing is left to measure. Returns what bench wrote last where it refused the matrix; else nothing.

        Raises:
            Refused, NeverRuns, GivesUp: see there. No job of this run waits or runs then.
        """
        self._adopt()
        try:
            while self.wanted:
                self._submit()
                self._look()
                for job in list(self._jobs.values()):
                    self._relay(job)
                    if words := self._end(job):
                        return words
                time.sleep(POLL_S)
        except (Refused, NeverRuns, GivesUp):
            self.cancel()
            raise
        return []

    def cancel(self) -> None:
        """End all jobs, because the user asks for it."""
        end_jobs(self.root, list(self._jobs))
        self._jobs.clear()

    @property
    def living(self) -> list[str]:
        """Ids."""
        return list(self._jobs)

    def _adopt(self) -> None:
        """Follow the jobs that an earlier bench, or the user by hand, has submitted for this run."""
        while True:
            try:
                for number in client.living(self.name):
                    self.show.note(f"job {number} of an earlier command goes on")
                    self._follow(number)
                self._close_others()
                return
            except Away as error:
                self._is_away(error)
                time.sleep(SOON_S)

    def _close_others(self) -> None:
        """Jobs that ended while nobody watched: what they had begun is lost."""
        for folder in (self.root / "slurm").glob("[0-9]*/"):
            job = JobFolder(folder)
            if folder.name not in self._jobs and job.fate() is None:
                fate = fate_of(client.look([folder.name]).get(folder.name), job.end(), float("inf"))
                self._close(job, fate or Fate(state="UNKNOWN"))

    def _submit(self) -> None:
        """Ask for the jobs that are missing."""
        while len(self._jobs) < self.wanted:
            file = self.root / "slurm" / "script.sh"
            file.parent.mkdir(parents=True, exist_ok=True)
            spool.write_text(file, self.script)
            try:
                number = client.submit(file, file.parent / "%j.out")
            except Away as error:
                self._is_away(error)
                return
            job = self._follow(number)
            job.folder.folder.mkdir(exist_ok=True)
            spool.write_text(job.folder.folder / "script.sh", self.script)
            self.show.note(f"job {number} is submitted")

    def _follow(self, number: str) -> _Job:
        self._stirred_s = time.monotonic()
        self._jobs[number] = _Job(jobs.of_run(self.root, number), self._results())
        return self._jobs[number]

    def _results(self) -> int:
        return sum(1 for _ in self.root.glob("attempts/*/b*/result.json"))

    def _look(self) -> None:
        """Ask Slurm for all jobs at once."""
        now = time.monotonic()
        if now - self._asked_s < (SOON_S if now - self._stirred_s < LIVELY_S else LATER_S):
            return
        self._asked_s = now
        try:
            seen = client.look(list(self._jobs))
        except Away as error:
            self._is_away(error)
            return
        if self._away:
            self._away = False
            self.show.note("Slurm's controller answers again")
        for number, job in self._jobs.items():
            before = job.seen
            job.look(seen.get(number))
            self._tell(number, before, job.seen)
        self.show.status(", ".join(_in_words(number, job.seen) for number, job in self._jobs.items()))

    def _is_away(self, error: Away) -> None:
        self._asked_s = time.monotonic()
        if not self._away:
            self._away = True
            self.show.note(f"Slurm's controller does not answer; jobs go on: {error}")

    def _tell(self, number: str, before: Seen | None, now: Seen | None) -> None:
        if now is None:
            return
        if before is None or (before.state, before.reason) != (now.state, now.reason):
            self._stirred_s = time.monotonic()
            if now.living and now.state != "COMPLETING":
                self.show.note(_in_words(number, now))
        settled = before is not None and before.reason == now.reason  # the first reason may be a provisional one
        if settled and (reason := never_runs(now)):
            raise NeverRuns(f"job {number} can never run: {reason}")

    def _relay(self, job: _Job) -> None:
        """Show what bench has written since, in whole lines."""
        try:
            with job.folder.log.open("rb") as log:
                log.seek(job.read)
                text = log.read()
        except OSError:
            return
        whole = text[: text.rfind(b"\n") + 1]
        job.read += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            self.show.relay(line)

    def _end(self, job: _Job) -> list[str]:
        """See whether a job is over, and what follows. Returns bench's last words where it refused the matrix."""
        job.look(job.seen)
        end = job.folder.end()
        if self._away and end is None:
            return []
        fate = fate_of(job.seen, end, job.still_s()) if job.seen is not None or job.still_s() > LIVELY_S else None
        if fate is None:
            return []
        number = job.folder.id
        self._relay(job)
        del self._jobs[number]
        self._stirred_s = time.monotonic()
        marked = self._close(job.folder, fate)
        if fate.state == REFUSED:
            self.cancel()
            return _tail(job.folder) or [f"bench ended with exit code 2 in job {number}"]
        if fate.state == DONE:
            self.wanted -= 1
        elif fate.state == GOES_ON:
            self.show.note(f"the time of job {number} is over: another one goes on")
        else:
            why = f": {fate.reason}" if fate.reason else ""
            self.show.note(f"job {number} ended with {fate.state}{why}")
            self._barren = 0 if marked or self._results() > job.results else self._barren + 1
            if self._barren == BARREN:
                last = " | ".join(_tail(job.folder))
                raise GivesUp(f"{BARREN} jobs in a row ended without a result, the last one with {fate.state}: {last}")
        return []

    def _close(self, job: JobFolder, fate: Fate) -> int:
        """Note a job's fate, wait until nothing of it is left, and mark what it did not finish. Returns how much."""
        job.set_fate(fate)
        beat, since_s = job.alive(), time.monotonic()
        while job.end() is None and beat is not None and time.monotonic() - since_s < QUIET_S:
            time.sleep(POLL_S)
            if job.alive() != beat:
                beat, since_s = job.alive(), time.monotonic()
        if fate.asked or fate.state in (DONE, REFUSED, GOES_ON):
            return 0
        reason = f"the Slurm job {job.id} ended with {fate.state}" + (f" ({fate.reason})" if fate.reason else "")
        return sum(tries.lose(self.root, cell, reason) for cell in claims.owned_by(self.root, job.id))


def end_jobs(root: Path, numbers: list[str]) -> None:
    """Have Slurm end jobs because the user asks for it, and wait until they have ended.

    Raises:
        Away, Refused: see `client.cancel`.
    """
    for number in numbers:
        jobs.of_run(root, number).set_fate(Fate(state="CANCELLED", asked=True))
    client.cancel(numbers)
    until_s = time.monotonic() + END_WITHIN_S
    while any(seen.living for seen in client.look(numbers).values()) and time.monotonic() < until_s:
        time.sleep(POLL_S)


def _tail(job: JobFolder) -> list[str]:
    """The last lines of what a job wrote."""
    for file in (job.log, job.scheduler_log):
        if lines := spool.end_of(file, 2000).strip().splitlines():
            return lines[-3:]
    return []


def _in_words(number: str, seen: Seen | None) -> str:
    if seen is None:
        return f"job {number} is new"
    if seen.state == "PENDING":
        return f"job {number} waits" + (f" ({seen.reason})" if seen.reason else "")
    if seen.state == "RUNNING":
        return f"job {number} runs on {seen.nodes}"
    return f"job {number}: {seen.state.lower()}"
