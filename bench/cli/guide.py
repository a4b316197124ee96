"""`bench guide`: prints the texts in bench/guides."""

from importlib.resources import files
from typing import Annotated

import typer

from bench.cli.printing import console
from bench.errors import InputError, near_miss


def guide(
    name: Annotated[str | None, typer.Argument(help="A guide. Without a name: the list of guides.")] = None,
) -> None:
    """List the guides, or print one."""
    texts = _texts()
    if name is None:
        width = max(map(len, texts))
        typer.echo("\n".join(f"{known:<{width}}  {purpose(text)}" for known, text in texts.items()))
        return
    if name not in texts:
        raise InputError(f"{name!r} is not a guide", field="NAME", allowed=list(texts), fix=near_miss(name, texts))
    shown_on = console()
    if shown_on.is_terminal:
        from rich.markdown import Markdown

        shown_on.print(Markdown(texts[name]))
    else:
        typer.echo(texts[name], nl=False)


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
