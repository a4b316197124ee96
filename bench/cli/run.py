"""`bench run` and `bench probe`: measure, or search the batch of, each selected cell."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.cli import selection
from bench.cli.app import REPORTS
from bench.cli.environment import check_environment
from bench.cli.printing import console, forget_stdout, print_report, print_unreadable
from bench.cli.quantities import seconds, share
from bench.cli.report_files import calibrations, choices_of, write_reports
from bench.errors import InputError

if TYPE_CHECKING:
    from bench.cli.progress import Progress
    from bench.matrix import Matrix
    from bench.records.outcome import Isolation, Result
    from bench.records.plan import CellPlan
    from bench.sweep.reuse import Rerun
    from bench.sweep.sweep import Sweep
    from bench.sweep.until import Wish


def run(
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
            help="After measure.launches, launch both sides of wide comparisons again until the 95 % interval"
            " of each is at most this share to each side: 2%.",
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="With --until: begin no further launch after this time, counted from the end of measure.launches:"
            " 90s, 20m or 2h.  [default: no limit, but at most 30 launches of one cell at one batch]",
        ),
    ] = None,
    force: selection.Force = False,
    dry_run: selection.DryRun = False,
) -> None:
    """Measure every cell of a matrix; running it again resumes.

    Each result is stored as soon as it is measured. The same command skips finished attempts and measures the others.
    """
    wish = _wish(until, budget)
    selected = selection.read(matrix, overrides or [], axis=axis, select=select, exclude=exclude)
    _measure(selected, out, rerun, isolation, keep_stale=keep_stale, force=force, dry_run=dry_run, wish=wish)


def probe(
    matrix: Annotated[
        Path | None,
        typer.Argument(metavar="MATRIX", help="The matrix file whose cells to search. Without one, use --backend."),
    ] = None,
    overrides: selection.Overrides = None,
    backend: selection.Backend = None,
    axis: selection.Axis = None,
    select: selection.Select = None,
    exclude: selection.Exclude = None,
    num_cams: Annotated[str | None, typer.Option(metavar="VALUES", help="Short for --axis num_cams=VALUES.")] = None,
    attention: Annotated[str | None, typer.Option(metavar="VALUES", help="Short for --axis attention=VALUES.")] = None,
    grad_ckpt: Annotated[str | None, typer.Option(metavar="VALUES", help="Short for --axis grad_ckpt=VALUES.")] = None,
    max_batch: Annotated[int | None, typer.Option(metavar="BATCH", help="Try no larger batch than this.")] = None,
    memory_limit: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Memory that one rank may allocate, such as 8GiB. auto on a CPU: a limit that keeps the search"
            " short; auto on a GPU: no limit.  [default: auto]",
        ),
    ] = None,
    granularity: Annotated[int | None, typer.Option(metavar="BATCH", help="Try only multiples of this batch.")] = None,
    tolerance: Annotated[
        str | None,
        typer.Option(metavar="SHARE", help="How far below the true maximum the largest batch may be: 3%."),
    ] = None,
    headroom: Annotated[
        str | None, typer.Option(metavar="SHARE", help="Share of the memory that the safe batch may use: 90%.")
    ] = None,
    out: selection.Out = None,
    rerun: selection.Rerun = None,
    keep_stale: selection.KeepStale = False,
    isolation: selection.Isolate = "fork",
    force: selection.Force = False,
    dry_run: selection.DryRun = False,
) -> None:
    """Find the largest batch that fits and the fastest one.

    Also finds the fastest batch that leaves memory to spare. With a matrix file, searches each of its cells:
    --backend, --select and --exclude select cells, --axis changes the matrix.
    """
    matrix, changes = selection.file_and_overrides(matrix, overrides)
    if matrix is None and backend is None:
        raise InputError("nothing to probe", fix="name a matrix file, or --backend fsdp")
    short = {"num_cams": num_cams, "attention": attention, "grad_ckpt": grad_ckpt}
    settings = {
        "probe.max_batch": max_batch,
        "launch.memory_limit": memory_limit,
        "probe.granularity": granularity,
        "probe.tolerance": tolerance,
        "probe.headroom": headroom,
    }
    changes = [f"{name}={value}" for name, value in settings.items() if value is not None] + changes
    selected = selection.read(
        matrix, changes, axis=axis, backend=backend, short=short, select=select, exclude=exclude, probed=True
    )
    _measure(selected, out, rerun, isolation, keep_stale=keep_stale, force=force, dry_run=dry_run)


def _wish(until: str | None, budget: str | None) -> "Wish | None":
    """What --until and --budget ask for; None without them."""
    if until is None:
        if budget is not None:
            raise InputError("has no effect without --until", where="--budget", fix="add --until 2%")
        return None
    half_width = share("--until", until)
    if not 0.0001 <= half_width < 1:
        raise InputError(f"{until!r} is out of range", where="--until", allowed="0.01% or more, and below 100%: 2%")
    from bench.report.widths import compared_axes, widths
    from bench.sweep.until import Wish

    return Wish(
        half_width=half_width,
        budget_s=None if budget is None else seconds("--budget", budget),
        widths=lambda results: widths(results, compared_axes(results)),
    )


def _measure(
    selected: selection.Selection,
    out: Path | None,
    rerun: "Rerun | None",
    isolation: "Isolation",
    *,
    keep_stale: bool,
    force: bool,
    dry_run: bool,
    wish: "Wish | None" = None,
) -> None:
    from bench import machine
    from bench.cli.progress import Progress
    from bench.matrix.host_memory import refuse_what_cannot_fit
    from bench.sweep.session import opened
    from bench.sweep.until import go_on

    check_environment()
    matrix, plans, hardware = selected
    if dry_run:
        from bench.cli import dry_run as preview

        typer.echo("\n".join(preview.lines(matrix, plans, hardware, os.environ)))
        return
    if not force:
        refuse_what_cannot_fit(plans, hardware.device, machine.host_bytes())
    folder = out or REPORTS / matrix.name
    with (
        Progress(console()) as progress,
        opened(
            matrix, plans, hardware, folder, progress, rerun=rerun, keep_stale=keep_stale, isolation=isolation
        ) as sweep,
    ):
        sweep.prepare()
        _begin(progress, sweep, matrix)
        with _reported(progress, sweep):
            results = sweep.run()
            if wish is not None:
                go_on(sweep, wish)
                results = sweep.results()
    _print_end(sweep, results, selected.matrix.choices, went_on=wish is not None)
    from bench.records.outcome import KINDS

    if any(KINDS[result.outcome.kind].fails for result in results):
        raise typer.Exit(1)


def _begin(progress: "Progress", sweep: "Sweep", matrix: "Matrix") -> None:
    """The first lines: how much there is to do, and what the user should know first."""
    from bench import machine
    from bench.sweep.stored_before import stored_before

    finished, attempts = sweep.finished(), sweep.planned()
    notes = [
        *matrix.notes,
        *machine.notes(sweep.machine),
        *_limits(sweep.plans),
        *stored_before(sweep),
        *(_disturbances(sweep) if finished < attempts else []),
    ]
    folder = str(sweep.store.root)
    progress.begin(cells=len(sweep.plans), attempts=attempts, finished=finished, folder=folder, notes=notes)


@contextmanager
def _reported(progress: "Progress", sweep: "Sweep") -> Iterator[None]:
    """Write the run's report at the end of the sweep, also when Ctrl-C or a signal stops it."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as stop:
        progress.end()
        resume = (
            "run the same command again to resume"
            if not sweep.rerun
            else "the same command measures the chosen attempts again; attempts that did not start keep earlier results"
        )
        with suppress(OSError):  # the terminal may be gone
            typer.echo(f"interrupted; {resume}: {sweep.store.root}", err=True)
        if isinstance(stop, SystemExit):
            raise
        raise typer.Exit(130) from None
    finally:
        stopped_by = sys.exception()
        try:
            write_reports(sweep.store)
        except (InputError, OSError) as error:  # the results are stored, and their exit code counts
            if not isinstance(stopped_by, InputError | OSError):  # that one is printed, and may be the cause of both
                with suppress(OSError):
                    typer.echo(f"bench: the report cannot be written: {error}", err=True)


def _print_end(sweep: "Sweep", results: "list[Result]", choices: "Sequence[str]", *, went_on: bool) -> None:
    from bench.report.tables.header import until_words
    from bench.report.tables.sections import Choices, Report
    from bench.units import counted

    store = sweep.store
    # Of a cell that this command did not search, maybe only some results are shown: its verdict is left out.
    searched = [plan.cell for plan in sweep.plans if "probe" in plan.batches]
    try:
        probes = [probe for probe in store.probes() if probe.cell in searched]
        free = Choices(free=choices_of([choices]))
        print_report(
            Report(results=results, probes=probes, choices=free, calibrations=calibrations([store])), console()
        )
        print_unreadable([store])
        if (others := len(store.results()) - len(results)) > 0:
            typer.echo(f"{counted(others, 'other attempt')} of this run not shown here: see the report")
        if went_on and (until := store.until()) is not None:
            typer.echo(until_words(until))
        typer.echo(f"results: {store.root}  report: {store.root / 'report.md'}")
    except OSError:  # everything is stored, and the exit code says how it went
        forget_stdout()


def _limits(plans: "Sequence[CellPlan]") -> list[str]:
    """The memory limits that are enforced, or up to where a search goes."""
    from bench.units import size

    each = "rank" if all(plan.cell.script is None for plan in plans) else "process of the script"
    doing = "probing" if any("probe" in plan.batches for plan in plans) else "measuring"
    limits = dict.fromkeys(plan.cell.memory_limit_bytes for plan in plans)
    enforced = [
        f"{doing} with a limit of {size(limit)} per {each} (launch.memory_limit), enforced"
        for limit in limits
        if limit is not None
    ]
    return enforced or (["probing without a limit, up to the free memory of the device"] if doing == "probing" else [])


def _disturbances(sweep: "Sweep") -> list[str]:
    """What already disturbs measurements on this machine."""
    from bench.report.conditions import disturbances

    return [f"the machine before the run: {text.removesuffix('.')}" for text in disturbances(sweep.beside.now())]
