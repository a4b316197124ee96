"""`bench show`: everything about one cell of a run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from bench.cli.app import REPORTS
from bench.cli.printing import print_document, print_unreadable
from bench.errors import InputError


def show(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="CELL [RUN]",
            help="The cell: its id, its folder's name, the beginning of either, or settings: backend=fsdp num_cams=4."
            " batch=8 selects one batch. Then the run's folder.  [default: the newest run]",
        ),
    ],
) -> None:
    """Show everything about one cell.

    Results of each batch, what the ranks observed, settings, errors with their stacks, and the end of each log.
    """
    from bench.cli.collect import collect
    from bench.report import find_cell
    from bench.report.tables import show as show_
    from bench.report.tables.show import LOG_LINES, Files
    from bench.store.newest_run import newest
    from bench.store.run_folder import Store

    cell_words, folder = _cell_and_run(words)
    store = Store(folder or newest(REPORTS))
    report = collect([store], claims=[])
    print_unreadable([store])
    results = find_cell.find_cell(report.results, cell_words)
    cell = results[0].attempt.cell
    files = {
        result.attempt.slug: Files(
            folder=str(store.folder(result.attempt)),
            command=store.command(result.attempt),
            log_tails=store.log_tails(result.attempt, LOG_LINES),
        )
        for result in results
    }
    parts = show_.show(results, files, store.probe(cell), store.walked(cell), report.newest, report.summary)
    print_document(show_.title(results), [f"From the run {store.root}"], parts)


def _cell_and_run(words: Sequence[str]) -> tuple[str, Path | None]:
    """The words that name the cell, and the run's folder. Words with ``=`` are settings of the cell, and the first of
    two others, or of one beside a batch, names it: ``fsdp num_cams=4 RUN``. The other word is the folder."""
    settings, others = [word for word in words if "=" in word], [word for word in words if "=" not in word]
    alone = len(others) == 1 and settings and Path(others[0]).is_dir()  # the folder of ``batch=8 RUN``
    named = len(others) > 1 or (others and not alone and all(word.startswith("batch=") for word in settings))
    cell = " ".join([*([others.pop(0)] if named else []), *settings])
    if len(others) > 1:
        raise InputError(f"{others[-1]!r} is one argument too many", allowed="CELL [RUN]")
    return cell, Path(others[0]) if others else None
