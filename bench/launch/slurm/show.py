"""Where it is said what happens to the jobs of a run."""

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
