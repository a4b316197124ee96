"""The job that this process runs in: what it measures there, for how long, and whether Slurm is ending it."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.launch.slurm import client
from bench.launch.slurm.client import ControllerUnavailable, JobStatus, RequestRejected
from bench.launch.slurm.job_end import is_gone, job_end_of, mark
from bench.store import jobs, run_lock
from bench.store.claims import Claims
from bench.store.jobs import End, JobEnd

ASK_EVERY_S = 30.0
LOOKS, BETWEEN_S = 3, 1.5
"""Ranks that Slurm ends may fail before Slurm's state says why."""
SILENCE_S = 120.0
"""How long a failure waits for a Slurm that does not answer. What ends a job may take its controller away, too."""


class Allocation:
    """The job of this process, in a run folder that it shares with other jobs.

    Args:
        root: the run folder.
        number: of the job.
    """

    def __init__(self, root: Path, number: str) -> None:
        self._root, self._number = root, number
        self.nodes = int(os.environ.get("SLURM_JOB_NUM_NODES", "1"))
        self.claims = Claims(root, number, self._is_over)
        self._seen: dict[str, tuple[float, JobStatus | None]] = {}
        self._marked: set[str] = set()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """As long as this process measures in the job: no other one may do so meanwhile.

        Raises:
            InputError: another one does.
        """
        job = jobs.of_run(self._root, self._number)
        followed = jobs.this_job() is not None  # its guard notes how it ends
        job.folder.mkdir(parents=True, exist_ok=True)
        with run_lock.held(job.folder):
            if not followed:
                job.begin()
            try:
                yield
            finally:
                if not followed:
                    job.set_end(End(exit_code=0))

    def left_s(self) -> float | None:
        """Until the job's time limit, as Slurm said last; None without one, or if Slurm has not answered yet."""
        self._look(self._number)
        asked_s, seen = self._seen.get(self._number, (0.0, None))
        if seen is None or seen.left_s is None:
            return None
        return seen.left_s - (time.monotonic() - asked_s)

    def is_ending(self) -> bool:
        """Whether Slurm no longer lets the job run."""
        answers, until_s = 0, time.monotonic() + SILENCE_S
        while answers < LOOKS:
            try:
                _, seen = self._ask(self._number)
            except RequestRejected:  # squeue is not installed on the nodes
                return False
            except ControllerUnavailable:
                if time.monotonic() > until_s:
                    return False
            else:
                if seen is not None and seen.state not in client.MEASURES:
                    return True
                answers += 1
            time.sleep(BETWEEN_S if answers < LOOKS else 0)
        return False

    def _is_over(self, owner: str) -> bool:
        """Whether nothing of another job measures any more. What it was interrupted in is then counted."""
        job = jobs.of_run(self._root, owner)
        asked_s, seen = self._look(owner)
        if job.end() is None and (not asked_s or (seen is not None and seen.living)):
            return False
        if job.end() is None and owner not in self._marked and not is_gone(job):
            return False
        if owner not in self._marked:
            self._marked.add(owner)
            mark(self._root, job, job.job_end() or job_end_of(seen, job.end(), float("inf")) or JobEnd(state="UNKNOWN"))
        return True

    def _look(self, number: str) -> tuple[float, JobStatus | None]:
        """When Slurm was asked, not long ago, and what it said; 0 and None if it does not answer."""
        asked_s, seen = self._seen.get(number, (0.0, None))
        if asked_s and time.monotonic() - asked_s < ASK_EVERY_S:
            return asked_s, seen
        try:
            return self._ask(number)
        except (ControllerUnavailable, RequestRejected):
            return 0.0, None

    def _ask(self, number: str) -> tuple[float, JobStatus | None]:
        self._seen[number] = answer = (time.monotonic(), client.look([number]).get(number))
        return answer
