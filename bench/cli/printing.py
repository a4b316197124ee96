"""Prints results and documents: markdown, or tables on a terminal."""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

import typer

from bench.errors import one_line

if TYPE_CHECKING:
    from rich.console import Console

    from bench.report.tables.sections import Report
    from bench.report.tables.show import Verbatim
    from bench.report.tables.table import Table
    from bench.store.run_folder import Store


def print_unreadable(stores: "Sequence[Store]") -> None:
    """Print a line on stderr for each file of these runs that could not be read."""
    for store in stores:
        for file, why in store.unreadable.items():
            what = "rebuilt from the results" if file.name == "run.json" else "left out"
            typer.echo(f"bench: {what}: {one_line(f'{file}: {why}', 480)}", err=True)


def console() -> "Console":
    from rich.console import Console

    class Lasting(Console):
        def on_broken_pipe(self) -> None:
            forget_stdout()  # the reader is gone; measuring goes on

    return Lasting(highlight=False)


def forget_stdout() -> None:
    """Send everything printed from now on to /dev/null: its reader is gone, and printing must not raise."""
    _forget(sys.stdout)


def _forget(stream: TextIO) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def flush() -> None:
    """Write what is printed and not yet written, or drop it where it cannot be: Python would end with exit code 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            _forget(stream)


def print_report(report: "Report", to: "Console", *, full: bool = False) -> None:
    """Print the short report, or all of it: aligned on a terminal, as markdown elsewhere."""
    from bench.report.render import markdown, terminal

    if to.is_terminal:
        parts = terminal.render(report.sections) if full else terminal.screen(report, to)
        for part in parts:
            to.print(part)
    else:
        typer.echo(markdown.document(report.brief))


def print_document(
    title: str, sentences: Sequence[str], parts: "Sequence[Table | Verbatim]", *, markdown: bool = False
) -> None:
    """Print a title, sentences and tables: aligned on a terminal, as markdown elsewhere, or if that is asked for."""
    from bench.report.render import terminal
    from bench.report.tables.table import Table

    shown_on = console()
    if markdown or not shown_on.is_terminal:
        typer.echo(_as_markdown(title, sentences, parts))
        return
    shown_on.print(f"{one_line(title)}\n", style="bold", markup=False)
    for part in parts:
        if isinstance(part, Table):
            for line in (*terminal.mark_up(part), ""):
                shown_on.print(line, markup=False)
        else:
            typer.echo(f"{part.title}\n\n{part.text}\n")
    for sentence in sentences:
        shown_on.print(one_line(sentence), markup=False)


def _as_markdown(title: str, sentences: Sequence[str], parts: "Sequence[Table | Verbatim]") -> str:
    from bench.report.render import markdown
    from bench.report.tables.table import Table

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
    return "\n".join(lines)
