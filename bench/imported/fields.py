"""The fields of a row of imported figures, their units, and how each is parsed. Pure."""

import math
import re

from pydantic import JsonValue

from bench import workloads
from bench.machine.hardware import LIBRARIES
from bench.records import stated
from bench.records.base import LARGEST, SMALLEST
from bench.records.cell import Measure, Train

TEXTS = ("backend", "workload", "outcome", "reason", "source", "device", "accelerator", "driver", "cpu", "git_commit")
TEXTS_OF_MACHINE = (*LIBRARIES, "allocator", "python")
COUNTS = ("batch", "num_processes", "devices")
OF_CELL = ("mixed_precision", "memory_limit_bytes", *Train.model_fields, *Measure.model_fields)
OPTION = r"workload\.[A-Za-z_]\w*"
"""Any other setting of the source's workload."""

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


def _option_types() -> dict[str, type]:
    """The type of each field of the bundled workload; NoneType if its default is null."""
    kind = workloads.load("pi07").Config
    return {name: type(value) for name, value in kind.model_validate({}).model_dump(mode="json").items()}


OPTIONS = _option_types()

FIELDS = (
    *TEXTS,
    *TEXTS_OF_MACHINE,
    *COUNTS,
    *stated.FIGURES,
    *OF_CELL,
    *OPTIONS,
)
"""Every allowed name of a column, except ``workload.<any other>``."""

MOST_HELD = 1.1
"""The largest allowed share of capacity: a measured peak may be slightly above the nominal capacity."""


class Expected(ValueError):
    """A value cannot be used. The message says what is expected."""


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
    """A number in base units, multiplied by ``scale``."""
    number = _number(value)
    words = ("a number, at least 0" if zero else "a number above 0") + ", without a unit: the field's name gives it"
    if number is None or not (SMALLEST <= number * scale <= LARGEST or (zero and number == 0)):
        raise Expected(words)
    return number * scale


def share(value: JsonValue) -> float:
    """``0.79`` or ``79%``."""
    percent = isinstance(value, str) and value.endswith("%")
    number = _number(value[:-1].strip() if percent and isinstance(value, str) else value)
    number = number / 100 if number is not None and percent else number
    if number is None or not 0 < number <= MOST_HELD:
        raise Expected("a share such as 0.79 or 79%")
    return number


def scalar(value: JsonValue) -> JsonValue:
    """``true``, ``false``, ``null``, a number, or the text itself."""
    if isinstance(value, dict | list):
        raise Expected("a single value")
    if not isinstance(value, str):
        if isinstance(value, int | float) and not abs(value) < 2**63:
            raise Expected("a number below 2**63")
        return value
    if value.lower() in ("true", "false"):  # pandas writes True
        return value.lower() == "true"
    if value == "null":
        return None
    if re.fullmatch(r"[-+]?\d{1,18}", value, re.ASCII):
        return int(value)
    number = _number(value)
    return text(value) if number is None else number


def option(name: str, value: JsonValue) -> JsonValue:
    """A setting of the workload. If the bundled workload has a field of this name, the type must match."""
    setting = scalar(value)
    match OPTIONS.get(name):
        case kind if kind is bool and not isinstance(setting, bool):
            raise Expected("true or false")
        case kind if kind is int and (isinstance(setting, bool) or not isinstance(setting, int)):
            raise Expected("a whole number")
        case kind if kind is float and (isinstance(setting, bool) or not isinstance(setting, int | float)):
            raise Expected("a number")
        case kind if kind is str:
            return text(value)
    return setting


def _number(value: JsonValue) -> float | None:
    if isinstance(value, str) and re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d{1,3})?", value, re.ASCII):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
