"""Which stored results a sweep uses, and which attempts it measures again."""

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal, get_args

from bench.records.cell import Attempt
from bench.records.outcome import INFRASTRUCTURE, KINDS, Failed, Result
from bench.records.sources import Sources, differing
from bench.store.run_folder import Store

Rerun = Literal["failed", "oom", "all"]
RERUN_KINDS = {word: {kind for kind, traits in KINDS.items() if word in traits.rerun} for word in get_args(Rerun)}


@dataclass(frozen=True, kw_only=True)
class Reuse:
    """What `--rerun`, changed sources and `--keep-stale` mean for the stored results of one sweep."""

    store: Store
    rerun: Rerun | None
    sources: Sources | None
    """What the ranks run now."""
    keep_stale: bool
    began: datetime | None = None
    """When the command began, if other processes measure for it too, or did: what is newer was measured for it."""
    done: set[Path] = field(default_factory=set, init=False)
    """Folders of the attempts that the sweep has finished; `--rerun` does not measure them again."""

    def stored(self, attempt: Attempt) -> Result | None:
        """The stored result of ``attempt``; None when it is to be measured, again or for the first time."""
        result = self.store.result(attempt)
        if (
            result is None
            or result.outcome.kind == "skipped"
            or self.wants_again(result)
            or deserves_another_try(result)
        ):
            return None
        return result

    def wants_again(self, result: Result) -> bool:
        """Whether ``--rerun`` or changed sources ask for another measurement of a stored result, and this sweep has not
        made it yet."""
        kinds = RERUN_KINDS[self.rerun] if self.rerun else set()
        newer = self.began is not None and datetime.fromisoformat(result.started_at) >= self.began
        again = (result.outcome.kind in kinds and not newer) or self.is_stale(result)
        return again and self.store.folder(result.attempt) not in self.done

    def is_stale(self, result: Result) -> bool:
        """Whether other sources made a stored result, and it is not kept."""
        return not self.keep_stale and bool(self.changed(result))

    def changed(self, result: Result) -> tuple[str, ...]:
        """The source files that changed since the result; none where either side is not known."""
        return differing(result.sources, self.sources) if result.sources and self.sources else ()


def deserves_another_try(result: Result) -> bool:
    """Whether the machine caused the failure, and there was no second try yet: bench may have stopped before it."""
    outcome = result.outcome
    return isinstance(outcome, Failed) and outcome.fault in INFRASTRUCTURE and result.retried is None
