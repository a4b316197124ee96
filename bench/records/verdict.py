"""A search: what was asked for, and how it ended. Batches are per rank."""

from contextlib import suppress
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, JsonValue, WithJsonSchema, field_validator, model_validator
from pydantic_core import PydanticCustomError

from bench.records.base import Amount, AtLeastOne, Frozen, Positive
from bench.records.cell import Cell


def _percent(value: Any) -> Any:
    """``3%`` is 0.03."""
    if isinstance(value, str) and value.strip().endswith("%"):
        with suppress(ValueError):
            return float(value.strip()[:-1]) / 100
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PydanticCustomError("share", "a number or a percentage such as 3%")
    return value


Share = Annotated[
    float,
    BeforeValidator(_percent),
    WithJsonSchema({"type": ["number", "string"], "pattern": r"^\s*[+-]?[0-9.]+([eE][+-]?[0-9]+)?\s*%\s*$"}),
]


class Goal(Frozen):
    """What the user wants to know, and how exactly."""

    max_batch: int = 65_536
    """No batch above it is tried."""
    granularity: int = 1
    """Batches tried are multiples of it."""
    tolerance: Share = 0.0
    """Share of max by which max may be understated; 0 is exact."""
    headroom: Share = 0.9
    """Share of capacity that the safe batch may hold."""

    @field_validator("max_batch", "granularity")
    @classmethod
    def _at_least_one(cls, value: int) -> int:
        if value < 1:
            raise ValueError(f"a batch is at least 1, not {value}")
        return value

    @field_validator("tolerance")
    @classmethod
    def _share_of_max(cls, value: float) -> float:
        if not 0 <= value < 1:
            raise ValueError(f"a share of the largest batch, from 0 (exact) to below 1 (0.03 is 3 %), not {value:g}")
        return value

    @field_validator("headroom")
    @classmethod
    def _share_of_capacity(cls, value: float) -> float:
        if not 0 < value <= 1:
            raise ValueError(f"a share of capacity, above 0 and up to 1 (0.9 is 90 %), not {value:g}")
        return value

    @model_validator(mode="after")
    def _something_to_try(self) -> "Goal":
        if self.granularity > self.max_batch:
            raise ValueError(
                f"granularity {self.granularity} is above the largest batch allowed, {self.max_batch}: nothing to try"
            )
        return self

    @property
    def cap(self) -> int:
        """The largest candidate."""
        return self.down(self.max_batch)

    @property
    def candidates(self) -> str:
        """The batches that may be tried, in words."""
        return f"multiples of {self.granularity} up to {self.cap}" if self.granularity > 1 else f"1 to {self.cap}"

    @property
    def remedy(self) -> str:
        """What to ask for when nothing was seen within the headroom."""
        finer = ["a smaller granularity"] if self.granularity > 1 else []
        return " or ".join([*finer, *(["a larger headroom"] if self.headroom < 1 else [])])

    def tries(self, batch: int) -> bool:
        """Whether the search may choose ``batch``. Others that were measured are hints to it and no answer."""
        return batch % self.granularity == 0 and batch <= self.cap

    def down(self, batch: float) -> int:
        """The nearest multiple of the granularity at or below ``batch``."""
        return int(batch // self.granularity) * self.granularity

    def width(self, fits: int) -> int:
        """How far above ``fits`` the next failure may be for ``fits`` to count as max."""
        return max(self.granularity, self.down(fits * self.tolerance))


Certificate = Literal["next_fails", "tolerance", "cap_fits", "nothing_fits", "contradicted"]
"""What max rests on, each point seen fresh.

next_fails    max fits and max + granularity does not
tolerance     max fits and a batch within the tolerance above it does not
cap_fits      the largest batch that the user allows fits
nothing_fits  the smallest candidate does not fit
contradicted  batches ran out that had fitted, or below ones that had, again and again: max fitted and nothing
              at or below it has failed, but how much more would fit this machine does not say
"""


class Answer(Frozen):
    """One batch to train with."""

    batch: AtLeastOne
    samples_per_s: Positive
    """Global; at the full step count when that was measured."""
    held: Amount | None
    """Share of capacity: reserved when known, else allocated."""
    confirmed: bool
    """Measured at the full step count in a fresh process."""


class Verdict(Frozen):
    """The end of the search."""

    kind: Literal["verdict"] = "verdict"
    max_batch_per_rank: int | None
    """None: not even the smallest candidate fits."""
    certificate: Certificate
    fits: int | None
    """Lower end of the bracket: the largest batch seen to fit."""
    fails: int | None
    """Upper end: the smallest batch seen to fail. None: none failed."""
    best: Answer | None
    """Highest throughput. None: nothing fits, every batch thrashes, or no throughput is known."""
    safe: Answer | None
    """Highest throughput within the headroom."""
    points: int
    """Fresh batches with a throughput, up to max, that best and safe rest on."""
    thrashing: tuple[int, ...]
    """Batches that fit and must not be recommended."""
    why: str

    @property
    def advised(self) -> Answer | None:
        """What to train with: safe, or best where nobody knows what it holds."""
        return self.safe or (self.best if self.best and self.best.held is None else None)

    @property
    def confirmed(self) -> bool:
        """Best and safe were measured at the full step count."""
        return all(answer.confirmed for answer in (self.best, self.safe) if answer)


class Stopped(Frozen):
    """The search ended without a verdict."""

    reason: str


class Probe(Frozen):
    """`probe.json`: what the search of one cell came to."""

    cell: Cell
    axes: dict[str, JsonValue]
    goal: Goal
    found: Verdict | Stopped
    needs_bytes: int | None = None
    """What the smallest batch takes without a limit, measured where it did not fit within one."""
