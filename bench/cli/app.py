"""The application: bad input becomes one message and exit code 2."""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from bench.errors import InputError, one_line
from bench.secrets import mask

if TYPE_CHECKING:
    from rich.console import Console

    from bench.records.outcome import Result
    from bench.records.verdict import Probe
    from bench.report.tables.sections import Choices
    from bench.report.tables.show import Verbatim
    from bench.report.tables.table import Table
    from bench.store.run_folder import Store

REPORTS = Path("reports")


class Commands(TyperGroup):
    """Turns bad input into one message and exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except InputError as error:
            _tell(error)
            raise typer.Exit(2) from error
        except BrokenPipeError as error:
            forget_stdout()
            raise typer.Exit(128 + signal.SIGPIPE) from error
        except OSError as error:
            where = str(error.filename) if error.filename else None
            _tell(InputError(error.strerror or str(error), where=where))
            raise typer.Exit(2) from error
        except Exception as error:
            if hasattr(error, "format_message"):  # typer's own words about an option
                setattr(error, "message", one_line(getattr(error, "message", "").replace("Value error, ", "", 1), 480))  # noqa: B010
            raise


def _tell(error: InputError) -> None:
    typer.echo(f"bench: {mask(str(error))}", err=True)  # a module of the user's may say anything when it is loaded


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Measure how to train: backends, batches and switches compared on the hardware at hand.",
)


def tell_left_out(stores: "Sequence[Store]") -> None:
    """Files of these runs that could not be read, a line each."""
    for store in stores:
        for file, why in store.unreadable.items():
            typer.echo(f"bench: left out: {one_line(f'{file}: {why}', 480)}", err=True)


def console() -> "Console":
    from rich.console import Console

    class Lasting(Console):
        def on_broken_pipe(self) -> None:
            forget_stdout()  # whoever read along has gone; the measuring goes on

    return Lasting(highlight=False)


def forget_stdout() -> None:
    """Nobody reads it any more: what is still to be printed goes nowhere, and raises nothing."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_results(
    results: "list[Result]", probes: "list[Probe]", to: "Console", choices: "Choices | None" = None
) -> None:
    from bench.report.render import markdown, terminal
    from bench.report.tables.sections import Choices, Report

    report = Report(results=results, probes=probes, choices=choices or Choices())
    if to.is_terminal:
        for part in terminal.render(report.brief):
            to.print(part)
    else:
        typer.echo(markdown.document(report.brief))


def print_document(title: str, sentences: Sequence[str], parts: "Sequence[Table | Verbatim]") -> None:
    """As markdown, or aligned on a terminal."""
    from bench.report.render import markdown, terminal
    from bench.report.tables.table import Table

    title, sentences = one_line(title), [one_line(sentence) for sentence in sentences]
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
