"""The fields that a row of imported figures may have, their units, and what is read from each. Pure."""

import math
import re

from pydantic import JsonValue

from bench import workload
from bench.machine.hardware import LIBRARIES
from bench.records.base import LARGEST, SMALLEST
from bench.records.cell import Measure, Train
from bench.records.phases import STORED_PHASES

SECONDS = {"s": 1.0, "ms": 1e-3}
BYTES = {"gb": 1e9, "gib": 2.0**30, "bytes": 1.0}
"""Units by the ending of a field's name. A GB is 1e9 bytes and a GiB 2**30."""

TEXTS = ("backend", "workload", "outcome", "reason", "source", "device", "accelerator", "driver", "cpu", "git_commit")
TEXTS_OF_MACHINE = (*LIBRARIES, "allocator", "python")
COUNTS = ("batch", "num_processes", "devices")
TIMES = ("step_time", *STORED_PHASES)
MEMORIES = ("peak_allocated", "peak_reserved", "peak", "capacity")
"""`peak` is for a source that does not say which of the two it gives: only its share of capacity is kept."""
OF_CELL = ("mixed_precision", *Train.model_fields, *Measure.model_fields)
OPTION = r"workload\.[A-Za-z_]\w*"
"""Any other setting of the source's own workload."""

UNITS_IN_WORDS = ", ".join(
    (
        *TEXTS,
        *COUNTS,
        "step_time_ms (or _s)",
        "samples_per_s",
        "forward_ms, bwd_ms and the other phases",
        "peak_allocated_gb, peak_reserved_gb, peak_gb, capacity_gb (or _gib, _bytes)",
        "capacity_share",
        *TEXTS_OF_MACHINE,
    )
)


def _known_options() -> dict[str, type]:
    """The type of each field of the bundled workload; NoneType where it may be anything."""
    kind = workload.load("pi07").Config
    return {name: type(value) for name, value in kind.model_validate({}).model_dump(mode="json").items()}


OPTIONS = _known_options()

FIELDS = (
    *TEXTS,
    *TEXTS_OF_MACHINE,
    *COUNTS,
    *(f"{name}_{unit}" for name in TIMES for unit in SECONDS),
    *(f"{name}_{unit}" for name in MEMORIES for unit in BYTES),
    "step_time_s_per_rank",
    "samples_per_s",
    "capacity_share",
    *OF_CELL,
    *OPTIONS,
)
"""Every name that a column may have, but for ``workload.<any other>``."""

MOST_HELD = 1.1
"""Of capacity: what was measured may lie a little above what a rank was meant to have."""


class Expected(ValueError):
    """A value that cannot be used; says what would be."""


def text(value: JsonValue) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise Expected("text in one line")
    return value.strip()


def count(value: JsonValue) -> int:
    """A whole number from 1 to a million."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,7}", value, re.ASCII):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1_000_000:
        raise Expected("a whole number, at least 1")
    return value


def quantity(value: JsonValue, scale: float, *, zero: bool = False) -> float:
    """In base units."""
    found = _number(value)
    words = ("a number, at least 0" if zero else "a number above 0") + ", without a unit: the field's name says it"
    if found is None or not (SMALLEST <= found * scale <= LARGEST or (zero and found == 0)):
        raise Expected(words)
    return found * scale


def share(value: JsonValue) -> float:
    """``0.79`` or ``79%``."""
    percent = isinstance(value, str) and value.endswith("%")
    found = _number(value[:-1].strip() if percent and isinstance(value, str) else value)
    found = found / 100 if found is not None and percent else found
    if found is None or not 0 < found <= MOST_HELD:
        raise Expected("a share such as 0.79 or 79%")
    return found


def scalar(value: JsonValue) -> JsonValue:
    """``true``, ``false``, ``null``, a number, or the text itself."""
    if isinstance(value, dict | list):
        raise Expected("a single value")
    if not isinstance(value, str):
        if isinstance(value, int | float) and not abs(value) < 2**63:
            raise Expected("a number below 2**63")
        return value
    if value in ("true", "false"):
        return value == "true"
    if value == "null":
        return None
    if re.fullmatch(r"[-+]?\d{1,18}", value, re.ASCII):
        return int(value)
    number = _number(value)
    return text(value) if number is None else number


def option(name: str, value: JsonValue) -> JsonValue:
    """A setting of the workload; one that the bundled workload has must be of its type."""
    found = scalar(value)
    match OPTIONS.get(name):
        case kind if kind is bool and not isinstance(found, bool):
            raise Expected("true or false")
        case kind if kind is int and (isinstance(found, bool) or not isinstance(found, int)):
            raise Expected("a whole number")
        case kind if kind is float and (isinstance(found, bool) or not isinstance(found, int | float)):
            raise Expected("a number")
        case kind if kind is str:
            return text(value)
    return found


def _number(value: JsonValue) -> float | None:
    if isinstance(value, str) and re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d{1,3})?", value, re.ASCII):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None
