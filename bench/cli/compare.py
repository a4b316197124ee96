"""compare and show."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.cli.app import REPORTS, app, print_document, tell_left_out
from bench.errors import InputError

if TYPE_CHECKING:
    from bench.store.run_folder import Store

LOG_LINES = 20


@app.command()
def compare(
    base: Annotated[Path, typer.Argument(help="The run's folder to hold against.")],
    head: Annotated[Path, typer.Argument(help="The run's folder to judge.")],
    fail_on_regression: Annotated[
        str | None,
        typer.Option(help="Exit with 1 when a step got longer by this much, 5%, or an attempt that was ok is no more."),
    ] = None,
    noise: Annotated[
        str | None,
        typer.Option(help="By how much runs of the same code differ here, 2%, instead of what their steps say."),
    ] = None,
    same_within: Annotated[str | None, typer.Option(help="A change that counts as none: 5%")] = None,
    allow_unlike: Annotated[
        bool, typer.Option("--allow-unlike", help="Compare runs of unlike machines too; every figure is marked.")
    ] = False,
) -> None:
    """Hold one run of a matrix against another: SAME, FASTER, SLOWER or UNCLEAR, and what broke."""
    from bench.report import compare as compare_
    from bench.report.tables import compare as compare_tables
    from bench.statistics.verdict import MARGIN
    from bench.store.run_folder import Store

    threshold = None if fail_on_regression is None else _share("--fail-on-regression", fail_on_regression)
    runs = [Store(base), Store(head)]
    two = compare_.compare_runs(
        *(run.results() for run in runs),
        searched=[probe.cell.id for run in runs for probe in run.probes()],
        noise=None if noise is None else _share("--noise", noise),
        margin=MARGIN if same_within is None else _share("--same-within", same_within),
        allow_unlike=allow_unlike,
    )
    tell_left_out(runs)
    warning = compare_tables.warning(two)
    if warning is not None:
        typer.echo(f"bench: {warning}", err=True)
    print_document(
        "Head against base",
        [*([warning] if warning else []), compare_tables.summary_line(two)],
        compare_tables.tables(two),
    )
    regressions = [] if threshold is None else compare_tables.regressions(two, threshold) + _lost(runs[1])
    for regression in regressions:
        typer.echo(f"regression: {regression}", err=True)
    for question in compare_tables.open_questions(two, threshold) if threshold is not None else ():
        typer.echo(question, err=True)
    if regressions:
        raise typer.Exit(1)


def _lost(head: "Store") -> list[str]:
    """Files of head that may hold what has become slower or failed."""
    return [f"{file.relative_to(head.root)} cannot be read: {why}" for file, why in head.unreadable.items()]


@app.command()
def show(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="CELL [RUN]",
            help="A cell's id or folder name, the beginning of either, or settings: backend=fsdp num_cams=4."
            " Then the run's folder; else the newest.",
        ),
    ],
) -> None:
    """Show everything about one cell."""
    from bench.report import find_cell
    from bench.report.tables import show as show_
    from bench.store.newest_run import newest
    from bench.store.run_folder import Store

    cell_words, folder = _cell_and_run(words)
    store = Store(folder or newest(REPORTS))
    found = store.results()
    tell_left_out([store])
    results = find_cell.find_cell(found, cell_words)
    cell = results[0].attempt.cell
    files = {
        result.attempt.slug: show_.Files(
            folder=str(store.folder(result.attempt)),
            command=store.command(result.attempt),
            log_tails=store.log_tails(result.attempt, LOG_LINES),
        )
        for result in results
    }
    parts = show_.show(results, files, store.probe(cell), store.walked(cell))
    print_document(show_.title(results), [f"From the run {store.root}"], parts)


def _cell_and_run(words: Sequence[str]) -> tuple[str, Path | None]:
    """Settings are words with ``=``. What else there is: the cell unless settings name it, then the run."""
    settings, others = [word for word in words if "=" in word], [word for word in words if "=" not in word]
    cell = " ".join(settings) if settings else others.pop(0)
    if len(others) > 1:
        raise InputError(f"{others[-1]!r} is one argument too many", allowed="CELL [RUN]")
    return cell, Path(others[0]) if others else None


def _share(option: str, text: str) -> float:
    """``5%`` or ``0.05``."""
    number, percent = text.strip().removesuffix("%"), text.strip().endswith("%")
    try:
        share = float(number) / (100 if percent else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share < 10:
        raise InputError(f"{text!r} is not a share", where=option, allowed="5% or 0.05")
    return share
