"""report."""

from pathlib import Path
from typing import Annotated

import typer

from bench.cli.app import REPORTS, app, console, print_results


@app.command()
def report(
    folder: Annotated[Path | None, typer.Argument(metavar="[RUN]", help="A run's folder; else the newest.")] = None,
    markdown_: Annotated[
        bool, typer.Option("--markdown", help="Markdown on a terminal too; elsewhere it is what you get.")
    ] = False,
) -> None:
    """Print a run as tables: markdown for a pull request, or aligned on a terminal."""
    from bench.report import markdown
    from bench.store import Store, newest

    store = Store(folder or newest(REPORTS))
    shown_on = console()
    if shown_on.is_terminal and not markdown_:
        print_results(store.results(), store.probes(), shown_on)
    else:
        typer.echo(markdown.render(store.results(), store.probes()), nl=False)
