"""What every record is made of: closed, immutable data, and bounds beyond which a record counts as not measured."""

import math
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue

SMALLEST, LARGEST = 1e-9, 1e18
"""Of a quantity in base units: beyond, it is a slip, and arithmetic with it would overflow."""
MOST = 2**60
"""Of a whole number, such as bytes or parameters; a little above `LARGEST`."""

Finite = Annotated[float, Field(allow_inf_nan=False)]
Amount = Annotated[Finite, Field(ge=0, le=LARGEST)]
"""Seconds, or a share."""
Positive = Annotated[Finite, Field(ge=SMALLEST, le=LARGEST)]
"""What something is divided by, such as the seconds of a step."""
Count = Annotated[int, Field(ge=0, le=MOST)]
"""Bytes, too."""
AtLeastOne = Annotated[int, Field(ge=1, le=MOST)]
Rank = Annotated[int, Field(ge=0, le=2**20)]


def not_finite(value: JsonValue, field: str) -> tuple[str, float] | None:
    """The first number below ``field`` that JSON has no word for, and its dotted path."""
    if isinstance(value, float) and not math.isfinite(value):
        return field, value
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for part, item in inner:
        found = not_finite(item, f"{field}[{part}]" if isinstance(part, int) else f"{field}.{part}")
        if found is not None:
            return found
    return None


def _all_finite(values: dict[str, JsonValue]) -> dict[str, JsonValue]:
    for name, value in values.items():
        if found := not_finite(value, name):
            raise ValueError(f"{found[0]}: {found[1]} is no JSON value")
    return values


Settings = Annotated[dict[str, JsonValue], AfterValidator(_all_finite)]
"""Finite, so that it can be hashed and written again."""

Device = Literal["cpu", "cuda"]


class Frozen(BaseModel):
    """Immutable, closed data: an unknown field is an error."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, strict=True, ser_json_inf_nan="constants"
    )
