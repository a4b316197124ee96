"""The fields of a row of imported figures, their units, and how each is parsed. Pure."""

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from pydantic import JsonValue

from bench.matrix.matrix_file import DEFAULT_WORKLOAD
from bench.matrix.workload_choice import load_workload
from bench.records import stated
from bench.records.base import LARGEST, SMALLEST
from bench.records.cell import Measure, Train
from bench.records.machine import LIBRARIES
from bench.records.precision import PRECISIONS

TEXTS = ("backend", "workload", "outcome", "reason", "source", "device", "accelerator", "driver", "cpu", "git_commit")
TEXTS_OF_MACHINE = (*LIBRARIES, "allocator", "python")
NOTE = "note"
"""For `--map note=NAME`: keep a column, and take it neither for a setting nor for a figure."""
RATES = ("samples_per_s_per_gpu", "tokens_per_s", "tokens_per_s_per_gpu", "steps_per_s")
"""What samples/s or a step time follow from."""
COUNTS = ("batch", "global_batch", "accumulate", "num_processes", "devices", "seq_len")
OF_CELL = ("mixed_precision", "memory_limit_bytes", *Train.model_fields, *Measure.model_fields)
OPTION = r"workload\.[A-Za-z_]\w*"
"""Any other setting of the source's workload."""

UNITS_IN_WORDS = ", ".join(
    (
        *TEXTS,
        *COUNTS,
        "step_time_ms (or _s)",
        "samples_per_s",
        *RATES,
        "forward_ms, bwd_ms and the other phases",
        f"{', '.join(f'{name}_gb' for name in stated.MEMORIES)} (or _gib, _bytes)",
        "capacity_share",
        *TEXTS_OF_MACHINE,
    )
)


_DEFAULTS = load_workload(DEFAULT_WORKLOAD, None).Config.model_validate({}).model_dump(mode="json")
OPTIONS = {name: type(value) for name, value in _DEFAULTS.items()}
"""The type of each field of the default workload; NoneType if its default is null."""

FIELDS = (
    *TEXTS,
    *TEXTS_OF_MACHINE,
    *COUNTS,
    *stated.FIGURES,
    *RATES,
    *OF_CELL,
    *OPTIONS,
)
"""Every allowed name of a column, except ``workload.<any other>``."""

MOST = 10**9
"""The largest count, such as tokens of a global batch."""
MOST_HELD = 1.1
"""The largest allowed share of capacity: a measured peak may be slightly above the nominal capacity."""


class Expected(ValueError):
    """A value cannot be used. The message says what is expected."""


def text(value: JsonValue) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise Expected("text in one line")
    return value.strip()


def count(value: JsonValue) -> int:
    """A whole number from 1 to `MOST`."""
    number = amount(value)
    if number is None or number.unit or number.value % 1 or not 1 <= number.value <= MOST:
        raise Expected(f"a whole number, at least 1 and at most {MOST:,}")
    return int(number.value)


def quantity(value: JsonValue, scale: float, *, units: Mapping[str, float] | None = None, zero: bool = False) -> float:
    """A number in base units: with the unit that it names, one of ``units``; else multiplied by ``scale``."""
    number, scales = amount(value), {"": scale, **(units or {})}
    words = "a number, at least 0" if zero else "a number above 0"
    words += f", alone or with a unit: {', '.join(units)}" if units else ", without a unit"
    if number is None or number.unit not in scales:
        raise Expected(words)
    size = number.value * scales[number.unit]
    if SMALLEST <= size <= LARGEST or (zero and size == 0):
        return size
    if size > 0:
        low, high = (f"{bound / scales[number.unit]:g} {number.unit}".rstrip() for bound in (SMALLEST, LARGEST))
        words = f"{'0, or ' if zero else ''}from {low} to {high}"
    raise Expected(words)


def share(value: JsonValue) -> float:
    """``0.79`` or ``79%``."""
    number = amount(value)
    size = None if number is None else number.value / 100 if number.unit == "%" else number.value
    if number is None or number.unit not in ("", "%") or size is None or not 0 < size <= MOST_HELD:
        raise Expected("a share such as 0.79 or 79%")
    return size


class Amount(NamedTuple):
    """A number as a table shows it."""

    value: float
    unit: str
    """In lower case; empty without one."""
    bare: bool
    """Whether the text is the number alone: without a unit, ``~`` or a scatter."""
    step: float
    """What one more in its last digit adds."""


_DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d*)?(?:[eE][-+]?\d{1,3})?"
_AMOUNT = re.compile(rf"[~≈]?\s*([-+]?{_DIGITS})(?:\s*(?:±|\+/-|\+-)\s*{_DIGITS})?\s*([A-Za-zµ%][\w/ .%]*)?", re.ASCII)


def amount(value: JsonValue) -> Amount | None:
    """``5,762``, ``45.3 GiB``, ``~3.2 s`` or ``812 ± 9 ms``; None for what is no number.

    A comma separates thousands.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str):
        match = _AMOUNT.fullmatch(value.strip())
        if match is None or not re.search(r"\d", match[1]) or len(value) > 100:
            return None
        digits = match[1].replace(",", "")
        mantissa, _, power = digits.lower().partition("e")
        step = 10.0 ** min(int(power or 0) - len(mantissa.partition(".")[2]), 300)
        number, unit, bare = float(digits), " ".join((match[2] or "").lower().split()), match[1] == value.strip()
    else:
        decimals = repr(value).partition(".")[2] if isinstance(value, float) else ""
        number, unit, bare = _finite(value), "", True
        step = 10.0 ** -len(decimals) if decimals.isdigit() else 0.0
    return Amount(number, unit, bare, step) if math.isfinite(number) else None


def _finite(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


DECIMAL_COMMA = r"[-+]?(\d{1,3}(\.\d{3})+,\d+|0,\d+|\d+,(\d{1,2}|\d{4,}))"
"""A number in which a comma can only stand before decimals: ``3,25`` or ``1.234,5``."""


def precision(value: JsonValue) -> str:
    """A matrix's name for a precision where it has one; else the source's own word, such as `bf16-true`, without fp32
    weights."""
    said = text(value if isinstance(value, str) else str(value))
    words = [("fp8", ("float8", "amp_fp8")), *((name, one.words) for name, one in PRECISIONS.items())]
    return next((name for name, others in words if said.lower() in (name, *others)), said)


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
    number = amount(value)
    return text(value) if number is None or not number.bare or "," in value else number.value


def setting(name: str, value: JsonValue) -> JsonValue:
    """A setting of a step. Others say of `compile` only whether they do."""
    read = scalar(value)
    return ("unit" if read else "none") if name == "compile" and isinstance(read, bool) else read


def option(name: str, value: JsonValue) -> JsonValue:
    """A setting of the workload. If the bundled workload has a field of this name, the type must match."""
    read = scalar(value)
    if name == "grad_ckpt":  # also 'selective' and 'full'
        switched = {"yes": True, "on": True, "no": False, "off": False}
        return switched.get(str(read).lower(), read)
    match OPTIONS.get(name):
        case kind if kind is bool and not isinstance(read, bool):
            raise Expected("true or false")
        case kind if kind is int and (isinstance(read, bool) or not isinstance(read, int)):
            raise Expected("a whole number")
        case kind if kind is float and (isinstance(read, bool) or not isinstance(read, int | float)):
            raise Expected("a number")
        case kind if kind is str:
            return text(value)
    return read
