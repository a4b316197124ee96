"""`bench calibrate`: learn how much launches of the same attempt differ on this machine."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from bench.cli import selection
from bench.cli.environment import check_environment
from bench.cli.printing import console
from bench.errors import InputError

BACKENDS = "ddp,fsdp2"
"""Cells of the built-in matrix."""


def calibrate(
    matrix: Annotated[
        Path | None,
        typer.Argument(
            metavar="MATRIX",
            help="Launch the cells of this matrix.  [default: ddp and fsdp2 of workload pi07, batch 1]",
        ),
    ] = None,
    overrides: selection.Overrides = None,
    launches: Annotated[int, typer.Option(metavar="N", min=3, max=1000, help="Launches of each cell.")] = 10,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="The run folder to write to.  [default: beside the result]")
    ] = None,
) -> None:
    """Learn how much launches of the same attempt differ on this machine.

    Launches each cell of a small matrix several times, in turns, and stores the scatter with the machine and the date
    in a file of the user (BENCH_STATE chooses its folder). `bench run` copies it into the run's folder. Reports use it
    to compare cells that were launched once. On a CPU, it also measures the rates of matrix products and copies, for
    the lower bounds of `bench plan --check` and of reports.
    """
    from bench.cli.progress import Progress
    from bench.launch.measured_rates import measured_rates
    from bench.records.calibration import Calibration
    from bench.report.summary import summarize
    from bench.store import calibrations
    from bench.sweep.session import opened
    from bench.units import percent

    check_environment()
    matrix, changes = selection.file_and_overrides(matrix, overrides)
    backend = BACKENDS if matrix is None else None
    asked = [f"measure.launches={launches}", *changes]
    selected = selection.read(matrix, asked, backend=backend, batch=1 if matrix is None else None)
    if selected.matrix.command is not None:
        raise InputError("bench calibrate measures with bench's own ranks, and a script has none", field="command")
    launches = min(plan.launches for plan in selected.plans)  # an override counts
    if any("probe" in plan.batches for plan in selected.plans):
        raise InputError(
            "a calibration repeats one batch, and does not search", field="batch", fix="name a batch: matrix.batch=8"
        )
    now, state = datetime.now(UTC).isoformat(timespec="seconds"), calibrations.folder()
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
    if isinstance(rates, str):  # the scatter is worth keeping
        typer.echo(f"bench: the rates of the CPU could not be measured: {rates}", err=True)
        rates = None
    scatter = next(iter(summarize(results).scatters), None)
    if scatter is None or scatter.degrees < launches - 1:
        kinds = ", ".join(dict.fromkeys(result.outcome.kind for result in results))
        raise InputError(
            f"too few launches were measured ({kinds})", where=str(run), fix=f"`bench show` says why: see {run}"
        )
    learnt = Calibration(
        machine=sweep.machine,
        measured_at=now,
        cells=len(sweep.plans),
        launches=launches,
        sd=scatter.sd,
        degrees=scatter.degrees,
        rates=rates,
    )
    file = calibrations.save(learnt, state)
    typer.echo(f"launches of one attempt differ by {percent(scatter.sd)}: the standard deviation of their mean step,")
    typer.echo(f"with {scatter.degrees} degrees of freedom. Stored in {file}; new runs on this machine use it.")
