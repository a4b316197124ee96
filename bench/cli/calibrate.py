"""`bench calibrate`: learn how much launches of the same attempt differ on this machine, and how long work takes."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from bench.cli import selection
from bench.cli.environment import check_environment
from bench.cli.printing import console
from bench.errors import InputError
from bench.matrix.matrix_file import DEFAULT_WORKLOAD
from bench.records.machine import Machine
from bench.units import counted, percent

BACKENDS = "ddp,fsdp2"
"""Cells of the built-in matrix."""
LAUNCHES = 10


def calibrate(
    matrix: Annotated[
        Path | None,
        typer.Argument(
            metavar="MATRIX",
            help=f"Launch the cells of this matrix.  [default: ddp and fsdp2 of workload {DEFAULT_WORKLOAD}, batch 1]",
        ),
    ] = None,
    overrides: selection.Overrides = None,
    launches: Annotated[
        int | None, typer.Option(metavar="N", min=3, max=1000, help=f"Launches of each cell.  [default: {LAUNCHES}]")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="The run folder to write to.  [default: beside the result]")
    ] = None,
    runs: Annotated[
        list[Path] | None,
        typer.Option(
            "--from",
            metavar="RUN",
            help="Launch nothing. Fit the time of operations, memory traffic and communication to the steps of this"
            " run, so that `bench plan` can estimate others. May be repeated.",
        ),
    ] = None,
) -> None:
    """Measure how much repeated launches differ on this machine.

    Launches each cell of a small matrix several times, in turns, and stores the variation with the machine and the date
    in a file of the user (BENCH_STATE chooses its folder). `bench run` copies it into the run's folder. Reports use it
    to compare cells that were launched once. On a CPU, it also measures the rates of matrix products, copies and
    all-reduces, for the lower bounds of `bench plan` and of reports.
    """
    if runs:
        if matrix is not None or overrides or out is not None or launches is not None:
            raise InputError(
                "cannot be combined with a matrix, overrides, --launches or --out: it launches nothing",
                where="--from",
                fix="leave them out, or leave out --from",
            )
        _learn_from(runs)
        return
    from bench.cli.progress import Progress
    from bench.launch.torch_side import measured_rates
    from bench.records.calibration import Calibration
    from bench.report.summary import summarize
    from bench.store import calibrations
    from bench.sweep.session import opened

    check_environment()
    matrix, changes = selection.file_and_overrides(matrix, overrides)
    backend = BACKENDS if matrix is None else None
    asked = [f"measure.launches={launches or LAUNCHES}", *changes]
    selected = selection.read(matrix, asked, backend=backend, batch=1 if matrix is None else None)
    if selected.matrix.command is not None:
        raise InputError("bench calibrate measures with bench's own ranks, and a script has none", field="command")
    number = min(plan.launches for plan in selected.plans)  # an override counts
    if any(plan.search for plan in selected.plans):
        raise InputError(
            "a calibration repeats one batch, and does not search", field="batch", fix="name a batch: matrix.batch=8"
        )
    now, state = datetime.now(UTC).isoformat(timespec="seconds"), calibrations.folder()
    calibrations.make(state)  # better now than after all launches
    run = out or state / f"run-{now[:19].replace(':', '')}"
    with (
        Progress(console()) as progress,
        opened(selected.matrix, selected.plans, selected.hardware, run, progress) as sweep,
    ):
        sweep.prepare()
        progress.begin(
            cells=len(sweep.plans), attempts=sweep.planned(), finished=sweep.finished(), folder=str(run), notes=[]
        )
        results = sweep.run()
    rates = measured_rates() if selected.hardware.device == "cpu" else None
    if isinstance(rates, str):  # the variation is worth keeping
        typer.echo(f"bench: the rates of the CPU could not be measured: {rates}", err=True)
        rates = None
    variation = next(iter(summarize(results).variations), None)
    if variation is None or variation.degrees < number - 1:
        kinds = ", ".join(dict.fromkeys(result.outcome.kind for result in results))
        raise InputError(
            f"too few launches were measured ({kinds})", where=str(run), fix=f"`bench show` says why: see {run}"
        )
    learnt = Calibration(
        machine=sweep.machine,
        measured_at=now,
        cells=len(sweep.plans),
        launches=number,
        sd=variation.sd,
        degrees=variation.degrees,
        rates=rates,
    )
    file = calibrations.save(learnt, state)
    typer.echo(f"launches of one attempt differ by {percent(variation.sd)}: the standard deviation of their mean step,")
    typer.echo(f"with {variation.degrees} degrees of freedom. Stored in {file}; new runs on this machine use it.")
    typer.echo("`bench run` of a matrix that is measured already applies it to that run, and launches nothing.")


def _learn_from(runs: Sequence[Path]) -> None:
    """Fit the pace of each kind of work to the steps of runs, and store it."""
    from bench.cli.forecasts import forecasts_of_run
    from bench.records.calibration import Paces
    from bench.report.estimate import Step, left_out, paces
    from bench.report.plan import check, steps_of
    from bench.report.summary import summarize
    from bench.store import calibrations
    from bench.store.run_folder import Store

    steps, machines, why = list[Step](), list[Machine](), dict[str, str]()
    for folder in runs:
        store = Store(folder)
        summary = summarize(store.results())
        forecasts, reasons = forecasts_of_run(store)
        steps += steps_of(check(summary, forecasts), forecasts)
        machines += summary.machines
        why |= reasons
    if unlike := next((found for one in machines if (found := machines[0].unlike(one))), None):
        raise InputError(f"the runs are of unlike machines: {'; '.join(unlike)}", where="--from")
    fitted, estimates = paces(steps), left_out(steps)
    off = [abs(found / step.step_s - 1) for step, found in zip(steps, estimates, strict=True) if found and step.step_s]
    if not fitted or not off:
        raise InputError(
            f"{counted(len({step.cell for step in steps}), 'measured cell')} with a plan: too few, or too unlike",
            where="--from",
            allowed="more cells than kinds of work: about ten, of several backends, sizes or batches",
            fix="; ".join(dict.fromkeys(why.values())) or "add a run of this machine: --from RUN --from OTHER",
        )
    learned = Paces(
        machine=machines[0],
        fitted_at=datetime.now(UTC).isoformat(timespec="seconds"),
        runs=tuple(folder.resolve().name for folder in runs),
        steps=len(steps),
        paces=fitted,
        off_median=median(off),
        off_worst=max(off),
    )
    file = calibrations.save_paces(learned, calibrations.folder())
    typer.echo(f"{counted(len(steps), 'step')} fitted. Of cells that are left out, estimates are off by")
    typer.echo(
        f"{percent(learned.off_median)} in the median and {percent(learned.off_worst)} at most. Stored in {file};"
    )
    typer.echo("`bench plan` estimates steps from it, for the same device.")
