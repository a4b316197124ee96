"""Shares and times in the options of a command."""

import re

from bench.errors import InputError


def share(option: str, text: str) -> float:
    """``5%`` or ``0.05``.

    Raises:
        InputError: not such a share, 1000 % and more, or 1 and more without the sign: 5 would be 500 %.
    """
    number, percent = text.strip().removesuffix("%"), text.strip().endswith("%")
    try:
        value = float(number) / (100 if percent else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < (10 if percent else 1):
        raise InputError(f"{text!r} is not a percentage or a fraction", where=option, allowed="5% or 0.05")
    return value


def seconds(option: str, text: str) -> float:
    """``90s``, ``20m`` or ``2h``; the unit is required.

    Raises:
        InputError: not such a time, or none at all.
    """
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?) *(s|m|min|h)", text.strip(), re.ASCII)
    value = float(found[1]) * {"s": 1, "m": 60, "min": 60, "h": 3600}[found[2]] if found else 0.0
    if value == 0:
        raise InputError(f"{text!r} is not a time", where=option, allowed="90s, 20m or 2h, above 0")
    return value
