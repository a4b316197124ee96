"""Ends jobs, and clears up after those that have ended."""

import time
from pathlib import Path

from bench.launch.slurm import client
from bench.launch.slurm.fate import DONE, GOES_ON, REFUSED
from bench.store import claims, jobs, spool, tries
from bench.store.jobs import Fate, JobFolder

POLL_S = 0.5
QUIET_S = 5.0
"""A job is gone when its guard, which beats every second, has been still for this long."""
END_WITHIN_S = 60.0


def close(root: Path, job: JobFolder, fate: Fate) -> int:
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
    return sum(tries.lose(root, cell, reason) for cell in claims.owned_by(root, job.id))


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


def tail(job: JobFolder) -> list[str]:
    """The last lines of what a job wrote."""
    for file in (job.log, job.scheduler_log):
        if lines := spool.end_of(file, 2000).strip().splitlines():
            return lines[-3:]
    return []
