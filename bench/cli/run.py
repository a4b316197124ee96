"""`bench run` and `bench probe`: measure, or search the batch of, each selected cell."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.cli import cluster, selection
from bench.cli.app import REPORTS
from bench.cli.environment import check_environment
from bench.cli.printing import console
from bench.cli.quantities import seconds, share
from bench.cli.run_screen import begin, load_libraries, print_end, reported
from bench.cli.settings import JOB, SEARCH, sets
from bench.errors import InputError
from bench.matrix import Matrix
from bench.units import counted

if TYPE_CHECKING:
    from bench.records.outcome import Isolation, Result
    from bench.sweep.reuse import Rerun
    from bench.sweep.sweep import Sweep
    from bench.sweep.until import Target


@dataclass(frozen=True, kw_only=True)
class How:
    """The options of both commands that select nothing."""

    out: Path | None
    rerun: "Rerun | None"
    isolation: "Isolation"
    keep_stale: bool
    force: bool
    dry_run: bool


@dataclass(frozen=True, kw_only=True)
class More:
    """The options of further launches."""

    settle: float | None = None
    budget_s: float | None = None
    best: bool = False


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
            help="After measure.launches, repeat close comparisons until each 95 % interval is at most this share to"
            " each side: 2%.",
        ),
    ] = None,
    settle: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE",
            rich_help_panel="How to measure",
            help="With measure.launches=auto, the default: launch again what decides until each of its 95 % intervals"
            " is at most this share to each side. With --best: by which another setting may be faster.  [default: 2%]",
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            rich_help_panel="How to measure",
            help="Begin no further launch of --until or measure.launches=auto after this time, counted from the end of"
            " the launches before: 90s, 20m or 2h. With --best: no attempt after this time.  [default: with --until"
            " and --best no limit, but at most 30 launches of one cell at one batch; with auto a quarter of the time"
            " before]",
        ),
    ] = None,
    best: Annotated[
        bool,
        typer.Option(
            "--best",
            rich_help_panel="How to measure",
            help="Measure only as much of the matrix as it takes to name the fastest setting: see `bench guide best`.",
        ),
    ] = False,
    launcher: cluster.Where = "local",
    jobs: cluster.Jobs = 1,
    force: selection.Force = False,
    dry_run: selection.DryRun = False,
    **settings: object,
) -> None:
    """Measure every cell of a matrix, or resume a run.

    Each result is stored as soon as it is measured. The same command skips finished attempts and measures the others.
    """
    for option, value in (("--until", until), ("--rerun", rerun)):
        if best and value is not None:
            raise InputError(f"cannot be combined with {option}", where="--best", fix=f"leave out {option}")
    if until is not None and settle is not None:
        raise InputError("cannot be combined with --until, which asks for all comparisons", where="--settle")
    if best and (given := next((text for text in overrides or [] if text.startswith("measure.launches=")), None)):
        fix = "leave one of the two out; --settle asks for a surer answer"
        raise InputError("has no effect: --best launches what decides as often as that takes", where=given, fix=fix)
    target = _target(until)
    more = More(
        settle=None if settle is None else _half_width("--settle", settle),
        budget_s=None if budget is None else seconds("--budget", budget),
        best=best,
    )
    alone = "--best" if best else "--until" if target else None
    where = cluster.Place(context=context, launcher=launcher, jobs=jobs, alone=alone)
    how = How(out=out, rerun=rerun, isolation=isolation, keep_stale=keep_stale, force=force, dry_run=dry_run)
    read = partial(selection.read, matrix, overrides or [], axis=axis, select=select, exclude=exclude)
    _measure(read, settings, where, how, target and replace(target, budget_s=more.budget_s), more)


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
    how = How(out=out, rerun=rerun, isolation=isolation, keep_stale=keep_stale, force=force, dry_run=dry_run)
    read = partial(
        selection.read, matrix, changes, axis=axis, backend=backend, select=select, exclude=exclude, probed=True
    )
    _measure(read, settings, where, how)


def _target(until: str | None) -> "Target | None":
    """What --until asks for; None without it."""
    if until is None:
        return None
    from bench.report.widths import compared_axes, widths
    from bench.sweep.until import Target

    half_width = _half_width("--until", until)
    return Target(half_width=half_width, widths=lambda results: widths(results, compared_axes(results)))


def _half_width(option: str, text: str) -> float:
    half_width = share(option, text)
    if not 0.0001 <= half_width < 1:
        raise InputError(f"{text!r} is out of range", where=option, allowed="0.01% or more, and below 100%: 2%")
    return half_width


def _auto(sweep: "Sweep", results: "list[Result]", more: More) -> "Target | None":
    """What `measure.launches: auto` asks for after the first launches; None where nothing leads,
    time is short, or jobs of other commands have some of the cells."""
    from bench.cli.collect import collect
    from bench.report.widths import leading_pairs, widths_of
    from bench.sweep.until import AUTO_HALF_WIDTH, Target, auto_budget_s, is_alone

    known = collect([sweep.store], claims=[])
    tasks = leading_pairs(results, known.probes, known.calibrations, known.choices.free)
    pairs = [pair for task in tasks for pair in task]
    budget_s = more.budget_s or auto_budget_s(results, tasks)
    if not pairs or not is_alone(sweep):
        return None
    if budget_s is None:
        words = "nothing is launched again: that takes longer than a quarter of this run (--budget 2m allows it)"
        sweep.progress.note(words)
        return None
    return Target(
        half_width=more.settle or AUTO_HALF_WIDTH,
        budget_s=budget_s,
        widths=lambda results: widths_of(results, pairs),
        auto=True,
    )


def _goes_on_by_itself(matrix: Matrix, target: "Target | None", more: More | None, jobs: int) -> bool:
    """Whether `measure.launches: auto` launches again what decides. By default, a search of batches (without ``more``)
    and several jobs do not."""
    auto, asked = matrix.measure.launches == "auto", "launches" in matrix.measure.model_fields_set
    if more is None:
        return auto and asked
    auto = auto and target is None and not more.best and (asked or jobs == 1)
    if more.budget_s is not None and not (target or auto or more.best):
        raise InputError(
            "has no effect without --until or measure.launches=auto", where="--budget", fix="add --until 2%"
        )
    if more.settle is not None and not (auto or more.best):
        raise InputError("has no effect without measure.launches=auto", where="--settle", fix="set it, or use --until")
    return auto


def _has_gone_on(folder: Path) -> bool:
    """Whether the further launches of the run in ``folder`` have ended."""
    from bench.store.run_folder import Store

    until = Store(folder).until()
    return until is not None and until.ended is not None


def _measure(
    read: "partial[selection.Selection]",
    settings: Mapping[str, object],
    where: cluster.Place,
    how: How,
    target: "Target | None" = None,
    more: More | None = None,
) -> None:
    from bench import machine
    from bench.cli.best import find_best
    from bench.cli.progress import Progress
    from bench.matrix.host_memory import refuse_what_cannot_fit
    from bench.sweep.session import opened
    from bench.sweep.until import AUTO, go_on

    select = partial(read, settings=settings, launcher=where.launcher)
    matrix, plans, hardware, every = select()
    auto, more = _goes_on_by_itself(matrix, target, more, where.jobs), more or More()
    if auto:
        where = replace(where, alone=AUTO)
    check_environment()
    where.check(plans, how.isolation)
    folder = how.out or REPORTS / matrix.name
    if where.launcher == "slurm":
        again, goes_on = bool(how.rerun or target or (more.best and more.budget_s)), auto and not _has_gone_on(folder)
        code = cluster.run(
            where,
            matrix,
            select,
            folder,
            dry_run=how.dry_run,
            again=again,
            goes_on=goes_on,
            best=more.best,
            keep_stale=how.keep_stale,
        )
        raise typer.Exit(code)
    if how.dry_run:
        from bench.cli import dry_run as preview
        from bench.store.run_folder import Store

        Store(folder).check()
        typer.echo("\n".join(preview.lines(matrix, plans, hardware, os.environ)))
        typer.echo(f"{counted(len(plans), 'cell')}; nothing was launched. Results would be in {folder}")
        return
    if not how.force:
        refuse_what_cannot_fit(plans, hardware.device, machine.host_bytes())
    load_libraries()
    with (
        where.share(matrix, hardware, folder) as share,
        Progress(console()) as progress,
        opened(
            matrix,
            plans,
            hardware,
            folder,
            progress,
            rerun=how.rerun,
            keep_stale=how.keep_stale,
            isolation=how.isolation,
            share=share,
            every=every,
        ) as sweep,
    ):
        sweep.prepare()
        begin(progress, sweep, matrix)
        with reported(progress, sweep):
            if more.best:
                results = find_best(sweep, matrix, more.settle, more.budget_s)
            else:
                sweep.store.forget_best()
                results = sweep.run()
            if auto:
                target = _auto(sweep, results, more)
            if target is not None:
                go_on(sweep, target)
                results = sweep.results()
    if where.launcher == "srun":  # who follows the jobs prints the report of all of them
        typer.echo(f"results: {folder}  report: {folder / 'report.md'}")
    else:
        print_end(sweep, results)
    if where.is_followed():
        return
    from bench.records.outcome import KINDS

    if any(KINDS[result.outcome.kind].fails for result in results):
        raise typer.Exit(1)
