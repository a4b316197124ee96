"""What the user is told of the jobs of a run: what happens, and why it is no longer waited for."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Show:
    note: Callable[[str], None]
    """What stays: a job waits, runs, ended."""
    relay: Callable[[str], None]
    """A line that bench wrote in a job."""
    status: Callable[[str], None]
    """What is so now."""


class NeverRuns(Exception):
    """The request can never run, for Slurm's reason."""


class Cancelled(Exception):
    """The user had another bench cancel the jobs."""


class GivesUp(Exception):
    """Jobs end without a result, for a reason that is not the attempts'."""
