"""run and probe."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from bench.cli.app import REPORTS, app, console, forget_stdout, print_results, tell_left_out
from bench.cli.reports import write_reports
from bench.errors import InputError

if TYPE_CHECKING:
    from bench.launch.watch import Limits
    from bench.machine import Hardware
    from bench.matrix import CellPlan, Matrix
    from bench.outcome import Isolation
    from bench.sweep import Rerun, Sweep


DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the cells with config, environment and command; launch nothing.")
]


@app.command()
def run(
    matrix: Annotated[Path, typer.Argument(help="The matrix file, e.g. matrices/quickstart.yaml.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Any field of the file: measure.steps=5")
    ] = None,
    axis: Annotated[list[str] | None, typer.Option(help="Set or add an axis: num_cams=1,2. Repeatable.")] = None,
    select: Annotated[
        list[str] | None, typer.Option(help="Keep only cells with these values: backend=fsdp,zero2. Repeatable.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(help="Drop cells that meet all of 'backend=fsdp num_cams=4'. Repeatable.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder instead of reports/<name>.")] = None,
    rerun: Annotated[
        Literal["failed", "oom", "all"] | None, typer.Option(help="Measure finished attempts of this kind again.")
    ] = None,
    isolation: Annotated[
        Literal["fork", "launch"],
        typer.Option(help="fork: rank servers that import once. launch: each attempt its own accelerate launch."),
    ] = "fork",
    dry_run: DryRun = False,
) -> None:
    """Measure every cell of a matrix. Run again, it goes on where it was stopped."""
    from bench import machine
    from bench.matrix import expand, load

    hardware = machine.detect()
    loaded = load(matrix, overrides=overrides or [], axes=axis or [], hardware=hardware)
    plans = expand(loaded, hardware, select=select or [], exclude=exclude or [])
    _sweep(loaded, plans, hardware, out, rerun, isolation, dry_run=dry_run)


@app.command()
def probe(
    matrix: Annotated[
        Path | None, typer.Argument(help="A matrix file whose cells are probed; without one, --backend says what.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Any field of a matrix: measure.steps=5")
    ] = None,
    backend: Annotated[str | None, typer.Option(help="One backend or several: fsdp,zero2")] = None,
    num_cams: Annotated[str | None, typer.Option(help="1 or 1,4")] = None,
    attention: Annotated[str | None, typer.Option(help="sdpa or eager")] = None,
    grad_ckpt: Annotated[str | None, typer.Option(help="true or false")] = None,
    max_batch: Annotated[int | None, typer.Option(help="No larger batch is tried.")] = None,
    memory_limit: Annotated[str | None, typer.Option(help="What one rank may allocate: 8GiB")] = None,
    granularity: Annotated[int | None, typer.Option(help="Batches tried are multiples of it.")] = None,
    tolerance: Annotated[str | None, typer.Option(help="How far max may be understated: 3%")] = None,
    headroom: Annotated[str | None, typer.Option(help="Share of capacity that the safe batch may hold: 90%")] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder instead of reports/<name>.")] = None,
    rerun: Annotated[
        Literal["failed", "oom", "all"] | None, typer.Option(help="Measure finished attempts of this kind again.")
    ] = None,
    isolation: Annotated[Literal["fork", "launch"], typer.Option(help="As in run.")] = "fork",
    dry_run: DryRun = False,
) -> None:
    """Find the largest batch that fits, the fastest, and the fastest with memory to spare."""
    from bench import machine
    from bench.matrix import expand, load

    if matrix is not None and "=" in str(matrix) and not matrix.exists():
        matrix, overrides = None, [str(matrix), *(overrides or [])]
    chosen = {"backend": backend, "num_cams": num_cams, "attention": attention, "grad_ckpt": grad_ckpt}
    axes = [f"{name}={value}" for name, value in chosen.items() if value is not None]
    settings = {
        "probe.max_batch": max_batch,
        "launch.memory_limit": memory_limit,
        "probe.granularity": granularity,
        "probe.tolerance": tolerance,
        "probe.headroom": headroom,
    }
    changes = [f"{name}={value}" for name, value in settings.items() if value is not None] + (overrides or [])
    hardware = machine.detect()
    if matrix is None and backend is None:
        raise InputError("nothing to probe", fix="name a matrix file, or --backend fsdp")
    loaded = load(matrix, overrides=changes, axes=axes, probed=True, hardware=hardware)
    _sweep(loaded, expand(loaded, hardware), hardware, out, rerun, isolation, dry_run=dry_run)


@contextmanager
def opened(
    loaded: "Matrix",
    plans: "list[CellPlan]",
    hardware: "Hardware",
    *,
    out: Path | None = None,
    rerun: "Rerun | None" = None,
    isolation: "Isolation" = "fork",
    limits: "Limits | None" = None,
    keep_matrix: bool = False,
) -> Iterator["Sweep"]:
    """The sweep of a matrix with its folder taken. When it is left, no process of it remains.

    Args:
        keep_matrix: leave the folder's own `matrix.yaml` as it is.
    """
    from bench import backends, machine, workload
    from bench.hygiene import Sampler
    from bench.launch.local import Forking, OwnLaunch
    from bench.launch.watch import Limits
    from bench.progress import Progress
    from bench.store import Store
    from bench.sweep import Sweep

    store = Store(out or REPORTS / loaded.name)
    record = machine.record(hardware, os.environ, backends.environment(1, hardware, os.environ))
    modules = [workload.module_of(loaded.workload.name)]
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
            signal.signal(number, lambda number, _: sys.exit(128 + number))  # so that the clean-up below runs
    text = None if keep_matrix else loaded.text()
    with store.open(record, [plan.cell for plan in plans], text), Progress(console()) as progress:
        own = isolation == "launch"
        executor = (
            OwnLaunch(hardware) if own else Forking(store.servers, hardware, modules, progress.waiting, progress.note)
        )
        with closing(executor):
            yield Sweep(
                plans=plans,
                goal=loaded.probe,
                units=workload.load(loaded.workload.name).units,
                machine=record,
                limits=limits or Limits(loaded.launch.attempt_timeout_s, loaded.launch.hang_after_s),
                rerun=rerun,
                store=store,
                executor=executor,
                progress=progress,
                beside=Sampler(store.root),
            )


def _sweep(
    loaded: "Matrix",
    plans: "list[CellPlan]",
    hardware: "Hardware",
    out: Path | None,
    rerun: "Rerun | None",
    isolation: "Isolation",
    *,
    dry_run: bool,
) -> None:
    from bench import machine

    _refuse_accumulation()
    if dry_run:
        from bench import dry_run as shown

        typer.echo("\n".join(shown.lines(loaded, plans, hardware, os.environ)))
        return
    with opened(loaded, plans, hardware, out=out, rerun=rerun, isolation=isolation) as sweep:
        store, finished = sweep.store, sweep.finished()
        sweep.progress.begin(
            cells=len(plans),
            attempts=sum(len(plan.batches) for plan in plans),
            finished=finished,
            folder=str(store.root),
            notes=[
                *loaded.notes,
                *machine.notes(sweep.machine),
                *_limits(plans),
                *sweep.unreadable(),
                *sweep.failed_before(),
                *_disturbed(sweep),
            ],
        )
        try:
            results = sweep.run()
        except (KeyboardInterrupt, SystemExit) as stop:
            sweep.progress.end()
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
        print_results(results, [found for found in store.probes() if found.cell in [p.cell for p in plans]], console())
        tell_left_out([store])
        typer.echo(f"results: {store.root}  report: {store.root / 'report.md'}")
    except OSError:  # all is stored, and the exit code says how it went
        forget_stdout()
    if any(result.outcome.kind in ("failed", "hang") for result in results):
        raise typer.Exit(1)


def _limits(plans: "list[CellPlan]") -> list[str]:
    """What a search takes for the ceiling."""
    from bench.units import gib

    limits = {plan.cell.memory_limit_bytes for plan in plans if "probe" in plan.batches}
    return [
        "probing up to what the device has free"
        if limit is None
        else f"probing up to {gib(limit)} GiB a rank, enforced"
        for limit in limits
    ]


def _disturbed(sweep: "Sweep") -> list[str]:
    """What is wrong with the machine already."""
    from bench.report.conditions import doubts

    return [f"the machine before the run: {doubt.removesuffix('.')}" for doubt in doubts(sweep.beside.now())]


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
