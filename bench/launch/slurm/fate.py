"""What became of a job: from Slurm's words, from the files that it left, and from how long nothing moved. Pure."""

from bench.launch.slurm.client import NEVER, Seen
from bench.store.jobs import OUT_OF_TIME, End, Fate

DONE, REFUSED, GOES_ON = "DONE", "REFUSED", "GOES_ON"
"""Words of bench for jobs that ended by themselves: all is measured, or owned by another job; the matrix or an option
is wrong; the job's time is over, and there is more to measure."""
_BY_EXIT_CODE = {0: DONE, 2: REFUSED, OUT_OF_TIME: GOES_ON}
"""In a job, failed attempts are no 1: that is an error in bench itself."""
FORGOTTEN_S = 30.0
"""Slurm may know a new job only after a moment, and forgets an old one."""
ENDING_S = 30.0
"""How long after the end of bench Slurm may take to say how the job ended."""


def fate_of(seen: Seen | None, end: End | None, still_s: float) -> Fate | None:
    """How a job ended; None while it lives, or may.

    Args:
        seen: the job as Slurm knows it; None: Slurm answers, and does not know it.
        end: how bench ended in it, if it did.
        still_s: for how long nothing of this has changed.
    """
    if end is not None and end.exit_code in _BY_EXIT_CODE:
        return Fate(state=_BY_EXIT_CODE[end.exit_code])
    if seen is None:
        return Fate(state="UNKNOWN", reason="Slurm no longer knows it") if still_s > FORGOTTEN_S else None
    if not seen.living:
        return Fate(state=seen.state, reason=seen.reason or None)
    if end is not None and still_s > ENDING_S:
        return Fate(state="FAILED", reason=f"bench ended in it with exit code {end.exit_code}")
    return None


def never_runs(seen: Seen) -> str | None:
    """Why a waiting job will never run, in Slurm's word and in plain ones; None if it may."""
    if seen.state != "PENDING" or seen.reason not in NEVER:
        return None
    return f"{seen.reason} ({NEVER[seen.reason]})"


def in_words(number: str, seen: Seen | None) -> str:
    """How a job is now."""
    if seen is None:
        return f"job {number} is new"
    if seen.state == "PENDING":
        return f"job {number} waits" + (f" ({seen.reason})" if seen.reason else "")
    if seen.state == "RUNNING":
        return f"job {number} runs on {seen.nodes}"
    return f"job {number}: {seen.state.lower()}"
