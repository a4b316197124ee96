"""What became of a job, and what follows: it is ended, and what it did not finish is counted."""

import time
from pathlib import Path

from bench.launch.slurm import client
from bench.launch.slurm.client import NEVER, JobStatus
from bench.store import claims, jobs, spool, tries
from bench.store.jobs import OUT_OF_TIME, End, JobEnd, JobFolder

DONE, REFUSED, GOES_ON = "DONE", "REFUSED", "GOES_ON"
"""Words of bench for jobs that ended by themselves: all is measured, or owned by another job; the matrix or an option
is wrong; the job's time is over, and there is more to measure."""
_BY_EXIT_CODE = {0: DONE, 2: REFUSED, OUT_OF_TIME: GOES_ON}
"""In a job, failed attempts are no 1: that is an error in bench itself."""
FORGOTTEN_S = 30.0
"""Slurm may know a new job only after a moment, and forgets an old one."""
ENDING_S = 30.0
"""How long after the end of bench Slurm may take to say how the job ended."""

POLL_S = 0.5
QUIET_S = 5.0
"""A job is gone when its guard, which beats every second, has been still for this long."""
END_WITHIN_S = 60.0


def job_end_of(seen: JobStatus | None, end: End | None, still_s: float) -> JobEnd | None:
    """How a job ended; None while it lives, or may.

    Args:
        seen: the job as Slurm knows it; None: Slurm answers, and does not know it.
        end: how bench ended in it, if it did.
        still_s: for how long nothing of this has changed.
    """
    if end is not None and end.exit_code in _BY_EXIT_CODE:
        return JobEnd(state=_BY_EXIT_CODE[end.exit_code])
    if seen is None:
        return JobEnd(state="UNKNOWN", reason="Slurm no longer knows it") if still_s > FORGOTTEN_S else None
    if not seen.living:
        return JobEnd(state=seen.state, reason=seen.reason or None)
    if end is not None and still_s > ENDING_S:
        return JobEnd(state="FAILED", reason=f"bench ended in it with exit code {end.exit_code}")
    return None


def never_runs(seen: JobStatus) -> str | None:
    """Why a waiting job will never run, in Slurm's word and in plain ones; None if it may."""
    if seen.state != "PENDING" or seen.reason not in NEVER:
        return None
    return f"{seen.reason} ({NEVER[seen.reason]})"


def job_in_words(number: str, seen: JobStatus | None) -> str:
    """How a job is now."""
    if seen is None:
        return f"job {number} is new"
    if seen.state == "PENDING":
        return f"job {number} waits" + (f" ({seen.reason})" if seen.reason else "")
    if seen.state == "RUNNING":
        return f"job {number} runs on {seen.nodes}"
    return f"job {number}: {seen.state.lower()}"


def close(root: Path, job: JobFolder, job_end: JobEnd) -> int:
    """Note how a job ended, wait until nothing of it is left, and mark what it did not finish. Returns how much."""
    job.set_job_end(job_end)
    while not is_gone(job):
        pass
    return mark(root, job, job_end)


def is_gone(job: JobFolder) -> bool:
    """Whether nothing of a job measures any more, after Slurm has given it up: processes may outlive their slurmd."""
    beat, until_s = job.alive(), time.monotonic() + QUIET_S
    while job.end() is None and beat is not None:
        if time.monotonic() > until_s:
            return job.alive() == beat
        time.sleep(POLL_S)
    return True


def mark(root: Path, job: JobFolder, job_end: JobEnd) -> int:
    """Count what a job was interrupted in as lost, once. Returns how much that is."""
    if job_end.asked or job_end.state in (DONE, REFUSED, GOES_ON):
        return 0
    folder = tries.underway(root, claims.ever_owned_by(root, job.id))
    if folder is None or claims.owner_of(root, folder.parent.name) != job.id:  # whoever has taken it has marked it
        return 0
    reason = f" ({job_end.reason})" if job_end.reason else ""
    tries.lose(folder, f"the Slurm job {job.id} ended with {job_end.state}{reason}")
    return 1


def end_jobs(root: Path, numbers: list[str]) -> None:
    """Have Slurm end jobs because the user asks for it, and wait until they have ended.

    Raises:
        ControllerUnavailable: no controller answers. The jobs read in the run's folder that they must end.
        RequestRejected: Slurm refuses to end some of them, which go on. It ends the others.
    """
    job_end, ending, refused = JobEnd(state="CANCELLED", asked=True), list[str](), list[str]()
    for number in numbers:
        job = jobs.of_run(root, number)
        job.set_job_end(job_end)
        try:
            client.cancel([number])
            ending.append(number)
        except client.RequestRejected as error:
            job.unset_job_end()
            refused.append(f"job {number}: {error}")
        except client.ControllerUnavailable:
            for each in numbers:
                jobs.of_run(root, each).set_job_end(job_end)
            raise
    until_s = time.monotonic() + END_WITHIN_S
    while any(seen.living for seen in client.look(ending).values()) and time.monotonic() < until_s:
        time.sleep(POLL_S)
    if refused:
        raise client.RequestRejected("; ".join(refused))


def tail(job: JobFolder) -> list[str]:
    """The last lines of what a job wrote."""
    for file in (job.log, job.scheduler_log):
        if lines := spool.end_of(file, 2000).strip().splitlines():
            return lines[-3:]
    return []
