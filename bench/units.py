"""The one module that formats quantities for people. Everything is stored in base units; GiB is 2**30."""

GIB = 2**30
UNKNOWN = "n/a"


def gib(n_bytes: float | None) -> str:
    return UNKNOWN if n_bytes is None else f"{n_bytes / GIB:.2f}"


def ms(seconds: float | None) -> str:
    if seconds is None:
        return UNKNOWN
    millis = seconds * 1e3
    return f"{millis:.2f}" if millis < 100 else f"{millis:.0f}"


def rate(per_second: float | None) -> str:
    return UNKNOWN if per_second is None else f"{per_second:.3g}" if per_second < 100 else f"{per_second:.0f}"


def percent(fraction: float | None) -> str:
    return UNKNOWN if fraction is None else f"{fraction * 100:.1f} %"


def duration(seconds: float | None) -> str:
    """A length of time for people: ``45 s``, ``3 min``, ``1 h 20 min``."""
    if seconds is None:
        return UNKNOWN
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def plain(number: float) -> str:
    """A number beside an axis: no more digits than it needs."""
    return f"{number:g}"


def amount(count: int) -> str:
    """Three digits of a large number: ``5.58 B``, ``98.1 M``, ``812 k``."""
    for size, suffix in ((1e9, " B"), (1e6, " M"), (1e3, " k")):
        if count >= size:
            return f"{count / size:#.3g}".rstrip(".") + suffix
    return str(count)
