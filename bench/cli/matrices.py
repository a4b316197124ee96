"""`bench matrices`: the matrices that come with bench."""

from typing import Annotated

import typer

from bench.errors import InputError, near_miss


def matrices(
    name: Annotated[str | None, typer.Argument(help="A matrix. Without a name: the list of matrices.")] = None,
) -> None:
    """List the matrices that come with bench, or print one.

    bench run NAME measures one from any folder. To change one, save what this command prints.
    """
    from bench.matrix.bundled import bundled, purpose

    texts = {known: file.read_text("utf-8") for known, file in bundled().items()}
    if name is None:
        width = max(map(len, texts))
        typer.echo("\n".join(f"{known:<{width}}  {purpose(text)}" for known, text in texts.items()))
        return
    if name not in texts:
        raise InputError(f"{name!r} is not a matrix", field="NAME", allowed=list(texts), fix=near_miss(name, texts))
    typer.echo(texts[name], nl=False)
