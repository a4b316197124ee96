"""The base class of all records, and the bounds of their numbers."""

import json
import math
import re
from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue

SMALLEST, LARGEST = 1e-9, 1e18
"""Bounds of a quantity in base units. A value outside them is a mistake, and arithmetic with it could overflow."""
MOST = 2**60
"""Upper bound of a whole number, such as bytes or parameters; a little above `LARGEST`."""

Finite = Annotated[float, Field(allow_inf_nan=False)]
Amount = Annotated[Finite, Field(ge=0, le=LARGEST)]
"""Seconds or a share; may be 0."""
Share = Annotated[Finite, Field(ge=0, le=1)]
Positive = Annotated[Finite, Field(ge=SMALLEST, le=LARGEST)]
"""A divisor, such as the seconds of a step; never 0."""
Count = Annotated[int, Field(ge=0, le=MOST)]
"""A number of things; bytes, too."""
AtLeastOne = Annotated[int, Field(ge=1, le=MOST)]
Rank = Annotated[int, Field(ge=0, le=2**20)]


def _with_offset(value: str) -> str:
    try:
        offset = datetime.fromisoformat(value).utcoffset()
    except ValueError:
        offset = None
    if offset is None:  # a time without one cannot be compared with the others
        raise ValueError(f"{value!r} is not a time such as 2026-01-31T12:00:00+00:00")
    return value


Moment = Annotated[str, AfterValidator(_with_offset)]
"""ISO 8601, UTC."""


def written(value: JsonValue) -> str:
    """A value as a command line takes it: a text as it is, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def settings_in(text: str) -> list[str]:
    """``backend=fsdp``, ``num_cams=4`` of ``backend=fsdp num_cams=4``. Spaces within a value stay."""
    return re.split(r"\s+(?=[\w.]+=)", text.strip())


def not_finite(value: JsonValue, field: str) -> tuple[str, float] | None:
    """The dotted path and the value of the first number in ``value`` that JSON cannot express; None if there is none.

    ``field`` is the path of ``value`` itself.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return field, value
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for part, item in inner:
        offender = not_finite(item, f"{field}[{part}]" if isinstance(part, int) else f"{field}.{part}")
        if offender is not None:
            return offender
    return None


def _all_finite(values: dict[str, JsonValue]) -> dict[str, JsonValue]:
    for name, value in values.items():
        if offender := not_finite(value, name):
            raise ValueError(f"{offender[0]}: {offender[1]} is not a JSON value")
    return values


Settings = Annotated[dict[str, JsonValue], AfterValidator(_all_finite)]
"""Field values by name. Every number is finite, so that the mapping can be hashed and written as JSON."""

Device = Literal["cpu", "cuda"]


class Frozen(BaseModel):
    """Immutable, closed data: an unknown field is an error."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, strict=True, ser_json_inf_nan="constants"
    )
