"""run and probe."""

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.cli import selection
from bench.cli.app import REPORTS, app, console, forget_stdout, print_results, tell_left_out
from bench.cli.report import write_reports
from bench.errors import InputError

if TYPE_CHECKING:
    from bench.matrix import CellPlan
    from bench.records.outcome import Isolation
    from bench.sweep.sweep import Rerun, Sweep


@app.command()
def run(
    matrix: Annotated[Path, typer.Argument(help="The matrix file, e.g. matrices/quickstart.yaml.")],
    overrides: selection.Overrides = None,
    axis: selection.Axis = None,
    select: selection.Select = None,
    exclude: selection.Exclude = None,
    out: selection.Out = None,
    rerun: selection.Rerun = None,
    isolation: selection.Isolate = "fork",
    dry_run: selection.DryRun = False,
) -> None:
    """Measure every cell of a matrix. Run again, it goes on where it was stopped."""
    read = selection.read(matrix, overrides or [], axis=axis, select=select, exclude=exclude)
    _sweep(read, out, rerun, isolation, dry_run=dry_run)


@app.command()
def probe(
    matrix: Annotated[
        Path | None, typer.Argument(help="A matrix file whose cells are probed; without one, --backend says what.")
    ] = None,
    overrides: selection.Overrides = None,
    backend: selection.Backend = None,
    axis: selection.Axis = None,
    select: selection.Select = None,
    exclude: selection.Exclude = None,
    num_cams: Annotated[str | None, typer.Option(help="Short for --axis num_cams=1,4")] = None,
    attention: Annotated[str | None, typer.Option(help="Short for --axis attention=sdpa,eager")] = None,
    grad_ckpt: Annotated[str | None, typer.Option(help="Short for --axis grad_ckpt=true")] = None,
    max_batch: Annotated[int | None, typer.Option(help="No larger batch is tried.")] = None,
    memory_limit: Annotated[str | None, typer.Option(help="What one rank may allocate: 8GiB, or auto.")] = None,
    granularity: Annotated[int | None, typer.Option(help="Batches tried are multiples of it.")] = None,
    tolerance: Annotated[str | None, typer.Option(help="How far max may be understated: 3%")] = None,
    headroom: Annotated[str | None, typer.Option(help="Share of capacity that the safe batch may hold: 90%")] = None,
    out: selection.Out = None,
    rerun: selection.Rerun = None,
    isolation: selection.Isolate = "fork",
    dry_run: selection.DryRun = False,
) -> None:
    """Find the largest batch that fits, the fastest, and the fastest with memory to spare.

    With a matrix file, in each of its cells: --backend, --select and --exclude pick cells, --axis changes the matrix.
    """
    matrix, changes = selection.file_and_overrides(matrix, overrides)
    if matrix is None and backend is None:
        raise InputError("nothing to probe", fix="name a matrix file, or --backend fsdp")
    short = {"num_cams": num_cams, "attention": attention, "grad_ckpt": grad_ckpt}
    axes = [*(axis or []), *(f"{name}={value}" for name, value in short.items() if value is not None)]
    settings = {
        "probe.max_batch": max_batch,
        "launch.memory_limit": memory_limit,
        "probe.granularity": granularity,
        "probe.tolerance": tolerance,
        "probe.headroom": headroom,
    }
    changes = [f"{name}={value}" for name, value in settings.items() if value is not None] + changes
    read = selection.read(matrix, changes, axis=axes, backend=backend, select=select, exclude=exclude, probed=True)
    _sweep(read, out, rerun, isolation, dry_run=dry_run)


def _sweep(
    read: selection.Asked,
    out: Path | None,
    rerun: "Rerun | None",
    isolation: "Isolation",
    *,
    dry_run: bool,
) -> None:
    from bench import machine
    from bench.cli.progress import Progress
    from bench.sweep.session import opened
    from bench.units import counted

    _refuse_accumulation()
    loaded, plans, hardware = read
    if dry_run:
        from bench.cli import dry_run as shown

        typer.echo("\n".join(shown.lines(loaded, plans, hardware, os.environ)))
        return
    folder = out or REPORTS / loaded.name
    with (
        Progress(console()) as progress,
        opened(loaded, plans, hardware, folder, progress, rerun=rerun, isolation=isolation) as sweep,
    ):
        store, finished, attempts = sweep.store, sweep.finished(), sum(len(plan.batches) for plan in plans)
        progress.begin(
            cells=len(plans),
            attempts=attempts,
            finished=finished,
            folder=str(store.root),
            notes=[
                *loaded.notes,
                *machine.notes(sweep.machine),
                *_limits(plans),
                *sweep.unreadable(),
                *sweep.failed_before(),
                *(_disturbed(sweep) if finished < attempts else []),
            ],
        )
        try:
            results = sweep.run()
        except (KeyboardInterrupt, SystemExit) as stop:
            progress.end()
            again = (
                "start the command again and it goes on from here"
                if not rerun
                else "the same command measures all of them again; what was not reached keeps its earlier result"
            )
            with suppress(OSError):  # the terminal may be gone
                typer.echo(f"interrupted; {again}: {store.root}", err=True)
            if isinstance(stop, SystemExit):
                raise
            raise typer.Exit(130) from None
        finally:
            write_reports(store)
    try:
        searched = [plan.cell for plan in plans if "probe" in plan.batches]  # of others, not all results are here
        print_results(results, [found for found in store.probes() if found.cell in searched], console())
        tell_left_out([store])
        if (others := len(store.results()) - len(results)) > 0:
            typer.echo(f"{counted(others, 'other attempt')} of this run not shown here: see the report")
        typer.echo(f"results: {store.root}  report: {store.root / 'report.md'}")
    except OSError:  # all is stored, and the exit code says how it went
        forget_stdout()
    if any(result.outcome.kind in ("failed", "hang") for result in results):
        raise typer.Exit(1)


def _limits(plans: "list[CellPlan]") -> list[str]:
    """What a search takes for the ceiling, and what is enforced."""
    from bench.units import size

    doing = "probing" if any("probe" in plan.batches for plan in plans) else "measuring"
    limits = dict.fromkeys(plan.cell.memory_limit_bytes for plan in plans)
    enforced = [f"{doing} up to {size(limit)} a rank, enforced" for limit in limits if limit is not None]
    return enforced or (["probing up to what the device has free"] if doing == "probing" else [])


def _disturbed(sweep: "Sweep") -> list[str]:
    """What is wrong with the machine already."""
    from bench.report.conditions import disturbances

    return [
        f"the machine before the run: {disturbance.removesuffix('.')}"
        for disturbance in disturbances(sweep.beside.now())
    ]


def _refuse_accumulation() -> None:
    """The environment is one more way in."""
    name = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"
    if os.environ.get(name, "1") != "1":
        from bench.matrix.accelerate_file import WHY_NO_ACCUMULATION

        raise InputError(
            f"{os.environ[name]!r}: gradient accumulation is refused",
            where="environment",
            field=name,
            fix=WHY_NO_ACCUMULATION,
        )
