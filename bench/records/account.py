"""Where the wall time of an attempt went."""

import math

from pydantic import field_validator

from bench.records.base import Amount, Frozen
from bench.records.phases import Stage

LAUNCH = "launch"
"""From the start of the attempt until its last rank enters the first stage."""
END = "end"
"""From the end of the last process until bench has read the results."""
PARTS = (LAUNCH, *Stage, END)


class Account(Frozen):
    """The wall time of one attempt by its parts, as far as its ranks left stamps.

    A stage begins when the last rank enters it, so the slowest rank of each stage decides how long it lasts: a rank
    that waits for another one spends that time in the other's stage. A stage that some rank never entered is part of
    the one before it.
    """

    parts_s: dict[str, Amount]
    """Seconds by PARTS, in their order; only those that are known."""

    @field_validator("parts_s")
    @classmethod
    def _known_parts(cls, parts_s: dict[str, float]) -> dict[str, float]:
        if unknown := set(parts_s) - set(PARTS):
            raise ValueError(f"an attempt has no part {min(unknown)}")
        return {part: parts_s[part] for part in PARTS if part in parts_s}

    @property
    def accounted_s(self) -> float:
        return math.fsum(self.parts_s.values())
