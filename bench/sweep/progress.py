"""What a sweep reports while it runs. `bench/cli/progress.py` displays it."""

from typing import Protocol

from bench.records.outcome import Result
from bench.records.verdict import Stopped, Verdict


class Progress(Protocol):
    """Receives the events of a sweep. Each call returns at once and raises only what a signal handler raises."""

    def waiting(self, what: str) -> None:
        """Something other than an attempt takes time, such as the start of the rank servers."""

    def planned(self, attempts: int, why: str = "") -> None:
        """How many attempts there are, now that this is known better, and why there are more of them."""

    def attempt(self, label: str, batch_per_rank: int, launch: int = 1) -> None:
        """An attempt starts; ``launch``: which of its repeated launches."""

    def beat(self, stage: str, step: int, steps: int) -> None:
        """The stage and step of the slowest rank; ``steps`` is 0 for a stage without steps."""

    def result(self, label: str, result: Result) -> None:
        """An attempt ended, or was skipped."""

    def probing(self, label: str, what: str) -> None:
        """A search takes its next step."""

    def verdict(self, label: str, found: Verdict | Stopped, needs_bytes: int | None = None) -> None:
        """A search ended. ``needs_bytes``: see `Probe`."""

    def note(self, text: str) -> None:
        """A warning that must stay visible."""
