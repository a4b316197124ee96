"""`bench run` and `bench probe`: measure, or search the batch of, each selected cell."""

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.cli import cluster, selection
from bench.cli.app import REPORTS
from bench.cli.environment import check_environment
from bench.cli.printing import console
from bench.cli.quantities import seconds, share
from bench.cli.run_screen import begin, print_end, reported
from bench.cli.settings import JOB, SEARCH, sets
from bench.errors import InputError

if TYPE_CHECKING:
    from bench.records.outcome import Isolation, Result
    from bench.sweep.reuse import Rerun
    from bench.sweep.sweep import Sweep
    from bench.sweep.until import Target


@sets(*JOB)
def run(
    context: typer.Context,
    matrix: Annotated[
        Path, typer.Argument(metavar="MATRIX", help="The matrix file, or one that comes with bench: quickstart.")
    ],
    overrides: selection.Overrides = None,
    axis: selection.Axis = None,
    select: selection.Select = None,
    exclude: selection.Exclude = None,
    out: selection.Out = None,
    rerun: selection.Rerun = None,
    keep_stale: selection.KeepStale = False,
    isolation: selection.Isolate = "fork",
    until: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE",
            rich_help_panel="How to measure",
            help="After measure.launches, launch the compared settings again, the widest interval first, until each"
            " 95 % interval is at most this share to each side: 2%.",
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            rich_help_panel="How to measure",
            help="With --until or measure.launches=auto: begin no further launch after this time, counted from the end"
            " of the launches before: 90s, 20m or 2h.  [default: with --until no limit, but at most 30 launches of one"
            " cell at one batch; with auto a quarter of the time before]",
        ),
    ] = None,
    launcher: cluster.Where = "local",
    jobs: cluster.Jobs = 1,
    force: selection.Force = False,
    dry_run: selection.DryRun = False,
    **settings: object,
) -> None:
    """Measure every cell of a matrix, or resume a run.

    Each result is stored as soon as it is measured. The same command skips finished attempts and measures the others.
    """
    target = _target(until)
    budget_s = None if budget is None else seconds("--budget", budget)
    where = cluster.Place(context=context, launcher=launcher, jobs=jobs, alone="--until" if target else None)
    read = partial(
        selection.read,
        matrix,
        overrides or [],
        axis=axis,
        select=select,
        exclude=exclude,
        settings=settings,
        launcher=launcher,
    )
    _measure(
        read,
        out,
        rerun,
        isolation,
        where,
        keep_stale=keep_stale,
        force=force,
        dry_run=dry_run,
        target=target,
        budget_s=budget_s,
    )


@sets(*SEARCH, *JOB)
def probe(
    context: typer.Context,
    matrix: Annotated[
        Path | None,
        typer.Argument(metavar="MATRIX", help="The matrix file whose cells to search. Without one, use --backend."),
    ] = None,
    overrides: selection.Overrides = None,
    backend: selection.Backend = None,
    axis: selection.Axis = None,
    select: selection.Select = None,
    exclude: selection.Exclude = None,
    out: selection.Out = None,
    rerun: selection.Rerun = None,
    keep_stale: selection.KeepStale = False,
    isolation: selection.Isolate = "fork",
    launcher: cluster.Where = "local",
    jobs: cluster.Jobs = 1,
    force: selection.Force = False,
    dry_run: selection.DryRun = False,
    **settings: object,
) -> None:
    """Find the largest batch that fits and the fastest one.

    Also finds the fastest batch that leaves memory to spare. With a matrix file, searches each of its cells:
    --backend, --select and --exclude select cells, --axis changes the matrix.
    """
    matrix, changes = selection.file_and_overrides(matrix, overrides)
    if matrix is None and backend is None:
        raise InputError("nothing to probe", fix="name a matrix file, or --backend fsdp")
    where = cluster.Place(context=context, launcher=launcher, jobs=jobs)
    read = partial(
        selection.read,
        matrix,
        changes,
        axis=axis,
        backend=backend,
        select=select,
        exclude=exclude,
        settings=settings,
        probed=True,
        launcher=launcher,
    )
    _measure(read, out, rerun, isolation, where, keep_stale=keep_stale, force=force, dry_run=dry_run)


def _target(until: str | None) -> "Target | None":
    """What --until asks for; None without it."""
    if until is None:
        return None
    half_width = share("--until", until)
    if not 0.0001 <= half_width < 1:
        raise InputError(f"{until!r} is out of range", where="--until", allowed="0.01% or more, and below 100%: 2%")
    from bench.report.widths import compared_axes, widths
    from bench.sweep.until import Target

    return Target(half_width=half_width, widths=lambda results: widths(results, compared_axes(results)))


def _auto(sweep: "Sweep", results: "list[Result]") -> "Target":
    """What `measure.launches: auto` asks for after the first launches."""
    from bench.cli.collect import collect
    from bench.report.widths import leading_pairs, widths_of
    from bench.sweep.until import AUTO_HALF_WIDTH, Target, auto_budget_s

    known = collect([sweep.store], claims=[])
    tasks = leading_pairs(results, known.probes, known.calibrations, known.choices.free)
    pairs = [pair for task in tasks for pair in task]
    return Target(
        half_width=AUTO_HALF_WIDTH,
        budget_s=auto_budget_s(results, tasks),
        widths=lambda results: widths_of(results, pairs),
        auto=True,
    )


def _measure(
    select: "partial[selection.Selection]",
    out: Path | None,
    rerun: "Rerun | None",
    isolation: "Isolation",
    where: cluster.Place,
    *,
    keep_stale: bool,
    force: bool,
    dry_run: bool,
    target: "Target | None" = None,
    budget_s: float | None = None,
) -> None:
    from bench import machine
    from bench.cli.progress import Progress
    from bench.matrix.host_memory import refuse_what_cannot_fit
    from bench.sweep.session import opened
    from bench.sweep.until import AUTO, go_on

    selected = matrix, plans, hardware, every = select()
    auto = target is None and matrix.measure.launches == "auto"
    if budget_s is not None and not (target or auto):
        raise InputError(
            "has no effect without --until or measure.launches=auto", where="--budget", fix="add --until 2%"
        )
    if auto:
        where = replace(where, alone=AUTO)
    check_environment()
    where.check(plans, isolation)
    folder = out or REPORTS / matrix.name
    if where.launcher == "slurm":
        again = bool(rerun or target)
        code = cluster.run(where, selected, select, folder, dry_run=dry_run, again=again, keep_stale=keep_stale)
        raise typer.Exit(code)
    if dry_run:
        from bench.cli import dry_run as preview
        from bench.units import counted

        typer.echo("\n".join(preview.lines(matrix, plans, hardware, os.environ)))
        typer.echo(f"{counted(len(plans), 'cell')}; nothing was launched. Results would be in {folder}")
        return
    if not force:
        refuse_what_cannot_fit(plans, hardware.device, machine.host_bytes())
    with (
        where.share(matrix, hardware, folder) as share,
        Progress(console()) as progress,
        opened(
            matrix,
            plans,
            hardware,
            folder,
            progress,
            rerun=rerun,
            keep_stale=keep_stale,
            isolation=isolation,
            share=share,
            every=every,
        ) as sweep,
    ):
        sweep.prepare()
        begin(progress, sweep, matrix)
        with reported(progress, sweep):
            results = sweep.run()
            if auto:
                target = _auto(sweep, results)
            if target is not None:
                go_on(sweep, target if budget_s is None else replace(target, budget_s=budget_s))
                results = sweep.results()
    if where.launcher == "srun":  # who follows the jobs prints the report of all of them
        typer.echo(f"results: {folder}  report: {folder / 'report.md'}")
    else:
        print_end(sweep, results, went_on=target is not None)
    if where.is_followed():
        return
    from bench.records.outcome import KINDS

    if any(KINDS[result.outcome.kind].fails for result in results):
        raise typer.Exit(1)
