"""A batch search: its goal and its verdict. Batches are per rank."""

import math
from bisect import bisect_right
from contextlib import suppress
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, JsonValue, WithJsonSchema, field_validator, model_validator
from pydantic_core import PydanticCustomError

from bench.records.base import Amount, AtLeastOne, Frozen, Positive
from bench.records.cell import Cell


def _percent(value: Any) -> Any:
    """``3%`` becomes 0.03."""
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
    """What the search looks for, and how precisely."""

    max_batch: int = 65_536
    """The largest batch to try."""
    granularity: int = 1
    """Only multiples of it are tried."""
    tolerance: Share = 0.01
    """How far below the true maximum the result may be, as a share of it; 0 is exact. It changes nothing below
    2 * granularity / share: the next candidates are further away."""
    headroom: Share = 0.9
    """Share of capacity that the safe batch may use."""

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
        """What to change when no batch stayed within the headroom."""
        finer = ["a smaller granularity"] if self.granularity > 1 else []
        return " or ".join([*finer, *(["a larger headroom"] if self.headroom < 1 else [])])

    def tries(self, batch: int) -> bool:
        """Whether ``batch`` can be an answer. Other measured batches serve only as hints."""
        return batch == self.down(batch) and batch <= self.cap

    def down(self, batch: float) -> int:
        """The largest candidate that is no larger than ``batch``, whatever the cap; 0 below the first."""
        return int(batch // self.granularity) * self.granularity

    def up(self, batch: int) -> int:
        """The next candidate above the candidate ``batch``, or above 0."""
        return batch + self.granularity

    def width(self, fits: int) -> int:
        """The largest distance from ``fits`` to the next failure at which ``fits`` counts as max."""
        return max(self.granularity, self.down(fits * self.tolerance))

    def of(self, cell: Cell) -> "Goal":
        """The goal of the search of ``cell``."""
        if cell.train.global_batch is None:
            return self
        return OfDivisors(**self.model_dump(), share=cell.train.global_batch // cell.num_processes)


class OfDivisors(Goal):
    """The same, where micro-batches make a global batch."""

    share: AtLeastOne
    """Samples of a rank in one optimizer step: only divisors are tried."""

    @property
    def candidates(self) -> str:
        multiples = f"multiples of {self.granularity} that divide" if self.granularity > 1 else "divisors of"
        return f"{multiples} {self.share} up to {self.cap}"

    def down(self, batch: float) -> int:
        listed = _divisors(self.share, self.granularity)
        return listed[at - 1] if (at := bisect_right(listed, batch)) else 0

    def up(self, batch: int) -> int:
        listed = _divisors(self.share, self.granularity)
        return listed[at] if (at := bisect_right(listed, batch)) < len(listed) else 2 * batch

    def width(self, fits: int) -> int:
        return self.up(fits) - fits


@cache
def _divisors(number: int, granularity: int) -> tuple[int, ...]:
    """Those that are multiples of ``granularity``, ascending."""
    small = [one for one in range(1, math.isqrt(number) + 1) if number % one == 0]
    return tuple(sorted(one for one in {*small, *(number // one for one in small)} if one % granularity == 0))


Certificate = Literal["next_fails", "tolerance", "cap_fits", "nothing_fits", "contradicted"]
"""The evidence for max, from attempts in fresh processes only.

next_fails    max fits, and the next candidate does not
tolerance     max fits, and a batch within the tolerance above it does not
cap_fits      the largest allowed batch fits
nothing_fits  the smallest candidate does not fit
contradicted  several times, or at the smallest candidate, a batch ran out of memory although it, or a larger one, had
              fitted. max fits and nothing at or below it has failed, but this machine does not show reliably whether
              more would fit
"""


class Answer(Frozen):
    """One batch to train with."""

    batch: AtLeastOne
    samples_per_s: Positive
    """Over all ranks; from an attempt at the full step count if there is one."""
    held: Amount | None
    """Share of capacity held: by reserved memory if known, else by allocated."""
    confirmed: bool
    """Whether it was measured at the full step count in a fresh process."""
    may_hold: Amount | None = None
    """Share of capacity that the next launch may hold: the largest of its attempts, plus `Verdict.peak_spread`."""
    even_with: tuple[int, ...] = ()
    """Other batches, measured in full, whose throughput differs from this one's by no more than the noise."""


class Verdict(Frozen):
    """The result of a finished search."""

    kind: Literal["verdict"] = "verdict"
    max_batch_per_rank: int | None
    """None: the smallest candidate does not fit."""
    certificate: Certificate
    fits: int | None
    """Lower end of the bracket: the largest batch that was seen to fit."""
    fails: int | None
    """Upper end of the bracket: the smallest batch that was seen to fail. None: none failed."""
    best: Answer | None
    """Highest throughput. None: nothing fits, every batch thrashes, or no throughput is known."""
    safe: Answer | None
    """Highest throughput within the headroom."""
    points: int
    """Number of batches up to max with a throughput from a fresh process; best and safe are chosen from them."""
    thrashing: tuple[int, ...]
    """Batches that fit but thrash: never recommended."""
    peak_spread: Amount | None = None
    """Largest difference between the peaks of two launches of one batch, as a share of capacity. The safe batch stays
    within the headroom even if its next peak is larger by this much. None: no batch was launched twice."""
    why: str

    @property
    def advised(self) -> Answer | None:
        """The batch to recommend: safe, or best if its memory use is unknown."""
        return self.safe or (self.best if self.best and self.best.held is None else None)

    @property
    def answers(self) -> tuple[int, ...]:
        """The best and the safe batch; often one and the same."""
        return tuple(dict.fromkeys(answer.batch for answer in (self.best, self.safe) if answer))

    @property
    def confirmed(self) -> bool:
        """Whether best and safe were measured at the full step count."""
        return all(answer.confirmed for answer in (self.best, self.safe) if answer)


class Stopped(Frozen):
    """The search ended without a verdict."""

    reason: str


class Probe(Frozen):
    """`probe.json`: the search of one cell and its verdict."""

    cell: Cell
    axes: dict[str, JsonValue]
    goal: OfDivisors | Goal
    found: Verdict | Stopped
    needs_bytes: int | None = None
    """Memory that the smallest batch needs without a memory limit; measured when it did not fit within the limit."""
