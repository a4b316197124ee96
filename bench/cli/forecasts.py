"""The forecasts of cells, with what is traced shown on stderr."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from bench.errors import InputError

if TYPE_CHECKING:
    from bench.records.base import Device
    from bench.records.cell import Cell
    from bench.records.forecast import Forecast
    from bench.report.rows import Summary
    from bench.sweep.forecasts import Forecasts

PATIENCE_S = 600.0
"""For the tracing of one model; the largest of the bundled ones takes ten seconds."""


def forecasts_of(cells: "Sequence[Cell]", device: "Device", workload: str, folder: str | None) -> "Forecasts":
    """The forecasts of cells. Shows on stderr what is traced."""
    from bench.records.program import Program
    from bench.sweep import forecasts

    done = 0

    def finished(found: object, number: int) -> None:
        nonlocal done
        done += 1
        took = f" in {found.seconds:.0f} s" if isinstance(found, Program) else ""
        typer.echo(f"bench: traced model {done}, of at most {number}{took}", err=True)

    return forecasts.forecasts_of(cells, device, workload, folder, finished, patience_s=PATIENCE_S)


def forecasts_of_run(summary: "Summary") -> "Forecasts":
    """The forecasts of the cells of a run, by the sources as they are now. Shows on stderr what is traced."""
    from bench.sweep.forecasts import Forecasts

    forecasts: dict[str, Forecast] = {}
    why: dict[str, str] = {}
    for one in summary.cells:
        try:
            found, reasons = forecasts_of([one.cell], one.rows[0].device, one.cell.workload, None)
        except InputError as error:
            found, reasons = {}, {one.cell.id: str(error)}
        forecasts.update(found)
        why.update(reasons)
    return Forecasts(forecasts, why)
