"""Texts that come with bench, which a command lists or prints by name."""

from collections.abc import Callable, Mapping

import typer

from bench.errors import InputError, near_miss

MAX_HOLDING = 3


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
    """A text with a similar name; else those that contain the word, the most often first."""
    times = {known: text.lower().count(name.lower()) for known, text in texts.items()}
    holding = sorted((known for known in texts if times[known]), key=lambda known: -times[known])[:MAX_HOLDING]
    return near_miss(name, texts) or (f"{name!r} is explained in: {', '.join(holding)}" if holding else None)
