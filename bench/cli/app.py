"""The application: bad input becomes one message and exit code 2."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from bench.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from bench.outcome import Result
    from bench.probe import Probe
    from bench.report.show import Verbatim
    from bench.report.tables import Table

REPORTS = Path("reports")


class Commands(TyperGroup):
    """Turns bad input into one message and exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except InputError as error:
            typer.echo(f"bench: {error}", err=True)
            raise typer.Exit(2) from error
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            typer.echo(f"bench: {where}{error.strerror or error}", err=True)
            raise typer.Exit(2) from error


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Measure how to train: backends, batches and switches compared on the hardware at hand.",
)


def console() -> "Console":
    from rich.console import Console

    return Console(highlight=False)


def print_results(results: "list[Result]", probes: "list[Probe]", to: "Console") -> None:
    from bench.report import markdown, terminal

    if to.is_terminal:
        for table in terminal.tables(results, probes):
            to.print(table)
    else:
        typer.echo(markdown.main_tables(results, probes))


def print_document(title: str, sentences: Sequence[str], parts: "Sequence[Table | Verbatim]") -> None:
    """As markdown, or aligned on a terminal."""
    from bench.report import markdown, terminal
    from bench.report.tables import Table

    shown_on = console()
    if shown_on.is_terminal:
        shown_on.print(f"{title}\n", style="bold", markup=False)
        for part in parts:
            if isinstance(part, Table):
                for line in (*terminal.mark_up(part), ""):
                    shown_on.print(line, markup=False)
            else:
                typer.echo(f"{part.title}\n\n{part.text}\n")
        for sentence in sentences:
            shown_on.print(sentence, markup=False)
        return
    lines = [
        f"# {markdown.escape(title)}",
        "",
        *(part for one in sentences for part in (f"**{markdown.escape(one)}**", "")),
    ]
    for part in parts:
        if isinstance(part, Table):
            lines += markdown.section(part)
        else:
            # Indented, not fenced: a log may hold a fence of its own.
            lines += [f"## {markdown.escape(part.title)}", "", *(f"    {line}" for line in part.text.splitlines()), ""]
    typer.echo("\n".join(lines))
