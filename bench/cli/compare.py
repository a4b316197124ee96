"""`bench compare`: two runs of a matrix."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from bench.cli.printing import print_document, print_unreadable
from bench.cli.quantities import share

if TYPE_CHECKING:
    from bench.store.run_folder import Store


def compare(
    base: Annotated[Path, typer.Argument(metavar="BASE", help="The folder of the run to compare with.")],
    head: Annotated[Path, typer.Argument(metavar="HEAD", help="The folder of the run to judge.")],
    fail_on_regression: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE",
            help="Exit with 1 when a step, or the tail of slow steps, is longer by more than this share, 5%, or an"
            " attempt that succeeded before fails or is missing now, or nothing was measured in both runs. stderr says"
            " how many attempts the gate could not decide.",
        ),
    ] = None,
    unclear: Annotated[
        Literal["fail", "pass"],
        typer.Option(
            help="Whether the gate fails where the verdict is UNCLEAR and the mean step is longer by more than the"
            " gate's share, and by more than launches of the same code differ by."
        ),
    ] = "fail",
    noise: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE",
            help="Standard deviation of the step time between runs of the same code on this machine: 2%."
            "  [default: known from launches, or assumed]",
        ),
    ] = None,
    same_within: Annotated[
        str | None, typer.Option(metavar="SHARE", help="The largest difference that counts as SAME: 5%.")
    ] = None,
    allow_unlike: Annotated[
        bool, typer.Option("--allow-unlike", help="Compare runs of unlike machines, and mark every figure.")
    ] = False,
) -> None:
    """Compare two runs of a matrix and find regressions.

    Each attempt gets a verdict for HEAD against BASE: SAME, FASTER, SLOWER, FASTER TAIL, SLOWER TAIL or UNCLEAR. A tail
    is the slow steps of a run. Attempts that fail in only one of the runs are listed.
    """
    from bench.report import compare as compare_
    from bench.report.tables import compare as compare_tables
    from bench.store.run_folder import Store

    threshold = None if fail_on_regression is None else share("--fail-on-regression", fail_on_regression)
    runs = [Store(base), Store(head)]
    two = compare_.compare_runs(
        *(run.results() for run in runs),
        searched=[probe.cell.id for run in runs for probe in run.probes()],
        calibrations=[learnt for run in runs if (learnt := run.calibration())],
        noise=None if noise is None else share("--noise", noise),
        margin=None if same_within is None else share("--same-within", same_within),
        allow_unlike=allow_unlike,
    )
    print_unreadable(runs)
    warning = compare_tables.warning(two)
    if warning is not None:
        typer.echo(f"bench: {warning}", err=True)
    disturbed = compare_tables.disturbed(two)
    lines = (warning, compare_tables.changed_sources(two), compare_tables.summary_line(two), disturbed)
    print_document(
        "Head against base",
        [line for line in lines if line is not None],
        compare_tables.tables(two),
    )
    regressions = [] if threshold is None else compare_tables.regressions(two, threshold) + _lost(runs[1])
    if threshold is not None and unclear == "fail":
        regressions += compare_tables.unclear_regressions(two, threshold)
    for regression in regressions:
        typer.echo(f"regression: {regression}", err=True)
    if threshold is not None and two.slower(threshold) and disturbed is not None:
        typer.echo(disturbed, err=True)
    for question in compare_tables.open_questions(two, threshold) if threshold is not None else ():
        typer.echo(question, err=True)
    nothing = threshold is not None and not two.pairs
    if nothing:
        typer.echo("no attempt was measured in both runs: the gate has nothing to judge", err=True)
    if regressions or nothing:
        raise typer.Exit(1)


def _lost(head: "Store") -> list[str]:
    """A sentence on each file of head that cannot be read: it may hide a regression."""
    return [f"{file.relative_to(head.root)} cannot be read: {why}" for file, why in head.unreadable.items()]
