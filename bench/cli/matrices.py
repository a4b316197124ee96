"""`bench matrices`: the matrices that come with bench."""

from typing import Annotated

import typer

from bench.cli.named_texts import pick


def matrices(
    name: Annotated[str | None, typer.Argument(help="A matrix. Without a name: the list of matrices.")] = None,
) -> None:
    """List the matrices that come with bench, or print one.

    bench run NAME measures one from any folder. To change one, save what this command prints.
    """
    from bench.matrix.bundled import bundled, purpose

    texts = {known: file.read_text("utf-8") for known, file in bundled().items()}
    text = pick(name, "matrix", texts, purpose)
    if text is None:
        return
    typer.echo(text, nl=False)
