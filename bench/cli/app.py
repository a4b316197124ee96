"""The application: bad input becomes one message and exit code 2."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from bench.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from bench.outcome import Result
    from bench.probe import Probe

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
