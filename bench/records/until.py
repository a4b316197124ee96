"""How further launches ended, of `bench run --until` or `measure.launches: auto`: what was asked for and reached."""

from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from bench.records.base import Amount, Count, Frozen, Positive
from bench.records.cell import Attempt

Ended = Literal["narrow", "budget", "launches", "no_pairs"]
"""narrow    every comparison is as narrow as asked
budget    the time was spent
launches  every cell that needs more launches has as many as are allowed, or failed too often
no_pairs  there was nothing to compare
"""


class Width(NamedTuple):
    """How sure one comparison is."""

    of: Attempt
    """The first launch of one side, which names its cell and batch."""
    against: Attempt
    half_width: float | None
    """Half of the 95 % interval of the ratio of throughputs, as a logarithm: a share. None: not known yet."""


class Until(Frozen):
    """`until.json`, of the last run that was asked to go on."""

    half_width: Positive
    """The share that was asked for."""
    auto: bool = False
    """Whether `measure.launches: auto` asked for it, and not --until."""
    budget_s: Positive | None
    """Seconds for the launches after the listed ones; null: no limit."""
    most_launches: Annotated[int, Field(ge=1)]
    """Of one cell at one batch."""
    ended: Ended | None = None
    """null: it was interrupted."""
    ended_at: str | None = None
    """ISO 8601, UTC."""
    launches: Count = 0
    """How many were added to the listed ones."""
    took_s: Amount = 0.0
    comparisons: Count = 0
    wide: Count = 0
    """Comparisons that are wider than asked, or not known well enough to tell."""
    widest: Amount | None = None
    """The largest half-width; null if that of one comparison is not known."""
