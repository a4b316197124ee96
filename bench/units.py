"""The one module that formats quantities for people. Everything is stored in base units; GiB is 2**30."""

import math
import re
from collections.abc import Callable
from typing import Literal

GIB = 2**30
UNKNOWN = "n/a"


def gib(n_bytes: float | None) -> str:
    """``11.77``; below one GiB with three decimals, because small models differ there."""
    if n_bytes is None:
        return UNKNOWN
    return f"{n_bytes / GIB:.2f}" if abs(n_bytes) >= GIB or not n_bytes else f"{n_bytes / GIB:.3f}"


def size(n_bytes: float | None) -> str:
    """Bytes in the unit that fits: ``812 B``, ``45.3 MiB``, ``-1.20 GiB``."""
    if n_bytes is None:
        return UNKNOWN
    for factor, unit in ((GIB, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if abs(n_bytes) >= factor:
            number = n_bytes / factor
            return f"{number:.0f} {unit}" if abs(number) >= 100 else f"{number:#.3g} {unit}"
    return f"{n_bytes:.0f} B"


def memory_size(n_bytes: float | None) -> str:
    """A capacity or a limit: ``8.00 GiB``, below one GiB ``320 MiB``."""
    if n_bytes is None:
        return UNKNOWN
    return f"{gib(n_bytes)} GiB" if abs(n_bytes) >= GIB else size(n_bytes)


def memory_needed(n_bytes: float) -> str:
    """Rounded up, so that a need never looks smaller than a limit that it exceeds."""
    step = GIB / 100 if n_bytes > GIB else 2**20
    return memory_size(math.ceil(n_bytes / step) * step)


def ms(seconds: float | None) -> str:
    if seconds is None:
        return UNKNOWN
    millis = seconds * 1e3
    return f"{millis:.2f}" if millis < 100 else f"{millis:.0f}"


def seconds(duration_s: float) -> str:
    return f"{duration_s:.2f}" if duration_s < 100 else f"{duration_s:.0f}"


def rate(per_second: float | None) -> str:
    if per_second is None:
        return UNKNOWN
    return f"{per_second:#.3g}" if per_second < 99.95 else f"{per_second:.0f}"


def percent(fraction: float | None) -> str:
    return UNKNOWN if fraction is None else f"{fraction * 100:.1f} %"


def duration(seconds: float | None) -> str:
    """A duration for people: ``45 s``, ``3 min``, ``1 h 20 min``."""
    if seconds is None:
        return UNKNOWN
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def counted(count: int, thing: str) -> str:
    """``1 cell``, ``2 cells``, ``2 launches``, ``2 processes``."""
    plural = "es" if thing.endswith(("ch", "ss")) else "s"
    return f"{count} {thing}{plural * (count != 1)}"


def amount(count: int) -> str:
    """Three digits of a large number: ``5.58 B``, ``98.1 M``, ``812 k``."""
    for size, suffix in ((1e9, " B"), (1e6, " M"), (1e3, " k")):
        if count >= size:
            return f"{count / size:#.3g}".rstrip(".") + suffix
    return str(count)


Kind = Literal["bytes", "s", "samples/s", "J/sample", "ratio", "count"]
SCALES: dict[Kind, dict[str, float]] = {
    "bytes": {
        "B": 1,
        "kB": 1e3,
        "MB": 1e6,
        "GB": 1e9,
        "TB": 1e12,
        "KiB": 2**10,
        "MiB": 2**20,
        "GiB": GIB,
        "TiB": 2**40,
    },
    "s": {"s": 1, "ms": 1e-3, "us": 1e-6},
    "samples/s": {"samples/s": 1},
    "J/sample": {"J/sample": 1, "mJ/sample": 1e-3, "kJ/sample": 1e3},
    "ratio": {"x": 1, "×": 1, "%": 0.01},
    "count": {"": 1},
}
"""The units that people may write after a number, by kind of quantity, with their size in base units."""


def quantity(text: str | float, kind: Kind) -> tuple[float, str]:
    """``11GB`` in base units, and the unit that it was written in. A plain number is in base units.

    Raises:
        ValueError: not a number with a unit of this kind; the message lists the units.
    """
    number = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,2})?)"
    found = re.fullmatch(rf"{number} *(\D*)", str(text).strip(), re.ASCII)
    units = SCALES[kind]
    base = next(iter(units))
    if found is None or (found[2] or base) not in units:
        raise ValueError(f"{str(text)[:40]!r} is no such quantity: a number with one of {', '.join(units)}")
    unit = found[2] or base
    return float(found[1]) * units[unit], unit


IN_TABLES: dict[Kind, Callable[[float], str]] = {
    "bytes": gib,
    "s": ms,
    "samples/s": rate,
    "J/sample": rate,
    "ratio": percent,
    "count": str,
}


def in_table(value: float | None, kind: Kind) -> str:
    """A quantity in the unit that tables have for its kind: GiB, ms, %."""
    return UNKNOWN if value is None else IN_TABLES[kind](value)


def in_unit(value: float, unit: str) -> str:
    """A quantity in a unit of `SCALES`: ``7.64 GB``, ``3120 ms``, ``0.70x``."""
    if unit == "samples/s":
        return f"{rate(value)} samples/s"
    if not unit:
        return f"{value:g}"
    if unit in ("x", "×"):
        return f"{value:.2f}{unit}"
    number = value / next(units[unit] for units in SCALES.values() if unit in units)
    return f"{number:.0f} {unit}" if abs(number) >= 1000 else f"{number:.4g} {unit}"
