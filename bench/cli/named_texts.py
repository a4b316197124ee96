"""Texts that come with bench, which a command lists or prints by name."""

import re
from collections.abc import Callable, Mapping

import typer

from bench.errors import InputError, near_miss

MAX_HOLDING = 3
SHORTEST = 3
"""Letters of a word to look for in the texts."""


def pick(name: str | None, kind: str, texts: Mapping[str, str], purpose: Callable[[str], str]) -> str | None:
    """The text called ``name``. Without a name, prints the list of all with their purposes, and returns None.

    Raises:
        InputError: there is no such text.
    """
    if name is None:
        width = max(map(len, texts))
        typer.echo("\n".join(f"{known:<{width}}  {purpose(text)}" for known, text in texts.items()))
        return None
    if name not in texts:
        raise InputError(f"{name!r} is not a {kind}", field="NAME", allowed=list(texts), fix=_fix(name, texts))
    return texts[name]


def _fix(name: str, texts: Mapping[str, str]) -> str | None:
    """The texts that contain the word, those that define it first; if none does, one with a similar name."""
    word = rf"\b{re.escape(name)}\b"
    defined = re.compile(rf"^(#.*|\| `?){word}", re.IGNORECASE | re.MULTILINE)
    times = {known: len(re.findall(word, text, re.IGNORECASE)) for known, text in texts.items()}
    holding = sorted(
        (known for known in texts if len(name) >= SHORTEST and times[known]),
        key=lambda known: (defined.search(texts[known]) is None, -times[known]),
    )
    return f"{name!r} is mentioned in: {', '.join(holding[:MAX_HOLDING])}" if holding else near_miss(name, texts)
