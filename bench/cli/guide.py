"""`bench guide`: prints the texts in bench/guides."""

from importlib.resources import files
from typing import Annotated

import typer

from bench.cli.named_texts import pick
from bench.cli.printing import console


def guide(
    name: Annotated[str | None, typer.Argument(help="A guide. Without a name: the list of guides.")] = None,
) -> None:
    """List the guides, or print one."""
    text = pick(name, "guide", _texts(), purpose)
    if text is None:
        return
    shown_on = console()
    if shown_on.is_terminal:
        from rich.markdown import Markdown

        shown_on.print(Markdown(text))
    else:
        typer.echo(text, nl=False)


def _texts() -> dict[str, str]:
    """The guides by name, in alphabetical order."""
    found = [file for file in files("bench").joinpath("guides").iterdir() if file.name.endswith(".md")]
    return {
        file.name.removesuffix(".md"): file.read_text("utf-8") for file in sorted(found, key=lambda file: file.name)
    }


def purpose(text: str) -> str:
    """The first line after a guide's title."""
    _, *lines = text.splitlines()
    return next(line for line in lines if line.strip())
