"""How `bench run --best` ended: the fastest setting, how sure that is, and what ruled out the others."""

from typing import Annotated, Literal

from pydantic import Field

from bench.records.base import Amount, Count, Frozen, Positive, Share

Ended = Literal["certified", "spent", "budget"]
"""certified  no other setting can be faster by more than was asked for, or than is enough late in a run
spent      those that may be faster were launched as often as is allowed
budget     the time was spent
"""
Ruled = Literal[
    "launched", "short", "others", "plan", "bound", "memory", "headroom", "failed", "invalid", "skipped", "open"
]
"""What ruled out a setting.

launched  it was launched in full, and what is known of all settings makes it unlikely to be faster by more
short     a short attempt of it is slower
others    it was not measured: settings with the same values were slower
plan      it was not measured: by its plan, it cannot fit
bound     by the lower bound of its step, it cannot be as fast as the answer
memory    it, or a smaller batch of its cell, ran out of memory, or its search found nothing that fits
headroom  it holds more memory than the headroom
failed    it failed or hung
invalid   its figures are wrong: see *Rows to doubt*
skipped   its backend forbids it
open      nothing: it may be faster by more than is enough
"""


class Fastest(Frozen):
    """The answer for one task."""

    task: str
    """The requirements of the task; empty if there is one task."""
    cell: str
    """The cell's id."""
    name: str
    """The cell's axes in words, and the batch."""
    batch_per_rank: Annotated[int, Field(ge=1)]
    within: Amount
    """No other setting is faster by more than this share, with `Best.confidence`."""
    settings: Annotated[int, Field(ge=1)]
    """Of the task: cells, each at each of its batches."""
    ruled_out: dict[Ruled, Count]
    """How many of the others each reason ruled out."""


class Best(Frozen):
    """`best.json`, of the last `bench run --best`."""

    margin: Positive
    """The share that was asked for."""
    frugal: bool = True
    """Whether it is the default, and a wider one enough late in a run."""
    budget_s: Positive | None = None
    """Of --budget."""
    confidence: Share
    ended: Ended | None = None
    """null: it was interrupted."""
    ended_at: str | None = None
    """ISO 8601, UTC."""
    attempts: Count = 0
    """That were made, of all commands; a search counts with all of its own."""
    of: Count = 0
    """Attempts of the whole matrix with one launch each; a search counts as one."""
    took_s: Amount = 0.0
    """All these attempts together."""
    answers: tuple[Fastest, ...] = ()
    unanswered: tuple[str, ...] = ()
    """Tasks of which nothing was launched in full."""
    cells: tuple[str, ...] = ()
    """Ids of the cells that were candidates."""

    @property
    def options(self) -> str:
        """What the command asked for beside --best: `` --settle 1% --budget 90s``."""
        settle = "" if self.frugal else f" --settle {100 * self.margin:g}%"
        return settle + (f" --budget {self.budget_s:g}s" if self.budget_s else "")
