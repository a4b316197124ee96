"""`bench import`: figures measured elsewhere."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.cli.app import REPORTS
from bench.cli.report_files import write_reports
from bench.errors import InputError, one_line
from bench.units import counted

if TYPE_CHECKING:
    from bench.records.outcome import Result
    from bench.store.run_folder import Store

MOST_NAMED = 12
"""Notes that are named."""


def import_(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE... [KEY=VALUE]",
            help="Tables (csv, tsv, Markdown, HTML) or JSON, and settings that hold for every row: num_processes=8.",
        ),
    ],
    mapping: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="FIELD=NAME",
            help="Read a field from a column or key of another name: step_time_s=timing.step. May be repeated.",
        ),
    ] = None,
    table: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Which table of a Markdown or HTML file, from 1.  [default: the only one]"
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="The run folder to write to.  [default: reports/<first file's name>]"),
    ] = None,
) -> None:
    """Import figures measured elsewhere as a run.

    Reports show them next to measured figures. What the files do not say is shown as n/a.
    """
    from bench import imported
    from bench.store.run_folder import Store

    settings = [source for source in sources if "=" in source and not Path(source).exists()]
    files = [Path(source) for source in sources if source not in settings]
    if not files:
        raise InputError("nothing to import", fix="name a file: csv, tsv, md, html or json")
    figures = imported.read_all(files, settings, datetime.now(UTC).isoformat(timespec="seconds"), mapping or [], table)
    store = Store(out or REPORTS / files[0].stem)
    save(figures.results, files, store)
    write_reports(store)
    if figures.not_read:
        keys = ", ".join(one_line(key, 100) for key in figures.not_read)
        typer.echo(f"not read: {keys}; --map FIELD=NAME reads them", err=True)
    for sentence in figures.told:
        typer.echo(sentence, err=True)
    if figures.notes:
        shown = [one_line(name, 60) for name in figures.notes[:MOST_NAMED]]
        more = f" and {len(figures.notes) - MOST_NAMED} more" if len(figures.notes) > MOST_NAMED else ""
        typer.echo(f"kept as notes: {', '.join(shown)}{more}; --map FIELD=NAME reads one as a figure", err=True)
    cells = len({result.attempt.cell.id for result in figures.results})
    typer.echo(f"imported {counted(len(figures.results), 'row')} in {counted(cells, 'cell')}: {store.root}")


def save(results: "Sequence[Result]", sources: Sequence[Path], store: "Store") -> None:
    """Store ``results`` as a new run, with copies of their source files in ``imported/``.

    Raises:
        InputError: the folder already holds a run or cannot be written, or two files have the same name.
    """
    from bench.imported.files import text_of

    names = [path.name for path in sources]
    if twice := [str(path) for path in sources if names.count(path.name) > 1]:
        raise InputError("have the same name", where=" and ".join(twice), fix="rename one")
    if (store.root / "run.json").exists():
        raise InputError(
            "already holds a run", where=str(store.root), fix="choose another folder with --out, or remove this one"
        )
    texts = {path.name: text_of(path) for path in sources}
    with store.open(results[0].machine, [result.attempt.cell for result in results], None):
        for name, text in texts.items():
            store.keep(name, text)
        for result in results:
            store.finish(result)
