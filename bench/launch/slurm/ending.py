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
    while not is_gone(job):
        pass
    return mark(root, job, fate)


def is_gone(job: JobFolder) -> bool:
    """Whether nothing of a job measures any more, after Slurm has given it up: processes may outlive their slurmd."""
    beat, until_s = job.alive(), time.monotonic() + QUIET_S
    while job.end() is None and beat is not None:
        if time.monotonic() > until_s:
            return job.alive() == beat
        time.sleep(POLL_S)
    return True


def mark(root: Path, job: JobFolder, fate: Fate) -> int:
    """Count what a job was interrupted in as lost, once. Returns how much that is."""
    if fate.asked or fate.state in (DONE, REFUSED, GOES_ON):
        return 0
    folder = tries.underway(root, claims.ever_owned_by(root, job.id))
    if folder is None or claims.owner_of(root, folder.parent.name) != job.id:  # whoever has taken it has marked it
        return 0
    tries.lose(folder, f"the Slurm job {job.id} ended with {fate.state}" + (f" ({fate.reason})" if fate.reason else ""))
    return 1


def end_jobs(root: Path, numbers: list[str]) -> None:
    """Have Slurm end jobs because the user asks for it, and wait until they have ended.

    Raises:
        Away: no controller answers. The jobs read in the run's folder that they must end.
        Refused: Slurm refuses to end some of them, which go on. It ends the others.
    """
    fate, ending, refused = Fate(state="CANCELLED", asked=True), list[str](), list[str]()
    for number in numbers:
        job = jobs.of_run(root, number)
        job.set_fate(fate)
        try:
            client.cancel([number])
            ending.append(number)
        except client.Refused as error:
            job.unset_fate()
            refused.append(f"job {number}: {error}")
        except client.Away:
            for each in numbers:
                jobs.of_run(root, each).set_fate(fate)
            raise
    until_s = time.monotonic() + END_WITHIN_S
    while any(seen.living for seen in client.look(ending).values()) and time.monotonic() < until_s:
        time.sleep(POLL_S)
    if refused:
        raise client.Refused("; ".join(refused))


def tail(job: JobFolder) -> list[str]:
    """The last lines of what a job wrote."""
    for file in (job.log, job.scheduler_log):
        if lines := spool.end_of(file, 2000).strip().splitlines():
            return lines[-3:]
    return []
