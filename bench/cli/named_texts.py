"""`bench guide` and `bench matrices`: texts that come with bench, listed or printed by name."""

import re
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Annotated

import typer

from bench.cli.printing import console
from bench.errors import InputError, near_miss

MAX_HOLDING = 3
SHORTEST = 3
"""Letters of a word to look for in the texts."""


def guide(
    name: Annotated[str | None, typer.Argument(help="A guide. Without a name: the list of guides.")] = None,
) -> None:
    """List the guides, or print one."""
    found = [file for file in files("bench").joinpath("guides").iterdir() if file.name.endswith(".md")]
    found.sort(key=lambda file: file.name)
    texts = {file.name.removesuffix(".md"): file.read_text("utf-8") for file in found}
    text = pick(name, "guide", texts, purpose)
    if text is None:
        return
    shown_on = console()
    if shown_on.is_terminal:
        from rich.markdown import Markdown

        shown_on.print(Markdown(text))
    else:
        typer.echo(text, nl=False)


def purpose(text: str) -> str:
    """The first line after a guide's title."""
    _, *lines = text.splitlines()
    return next(line for line in lines if line.strip())


def matrices(
    name: Annotated[str | None, typer.Argument(help="A matrix. Without a name: the list of matrices.")] = None,
) -> None:
    """List the matrices that come with bench, or print one.

    bench run NAME measures one from any folder. To change one, save what this command prints.
    """
    from bench.matrix import bundled as bundled_

    texts = {known: file.read_text("utf-8") for known, file in bundled_.bundled().items()}
    text = pick(name, "matrix", texts, bundled_.purpose)
    if text is not None:
        typer.echo(text, nl=False)


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
