"""What a plan expects of cells: their programs, stored or traced now, and the forecasts that follow from them."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from bench import backends, workloads
from bench.backends.forecast import forecast, not_planned
from bench.launch.torch_side import traced
from bench.machine import libraries
from bench.records.base import Device
from bench.records.cell import Cell
from bench.records.devices import prefers_cudnn
from bench.records.forecast import Forecast
from bench.records.program import Program
from bench.store import calibrations, programs
from bench.store.programs import NotTraced, ProgramRequest
from bench.sweep import sources
from bench.units import percent

BATCHES = (2, 4, 256)
"""At which a program is traced: a line through the first two, checked by the third, which is far from them: where
memory grows faster than the batch, small batches hide it. On the meta device, a large batch costs no more."""
STRAIGHT = 0.10
"""By which share a traced peak may differ from the lines."""


class Forecasts(NamedTuple):
    """By the cell's id."""

    found: Mapping[str, Forecast]
    why_not: Mapping[str, str]
    """Why there is none."""


def forecasts_of(
    cells: Sequence[Cell],
    device: Device,
    workload: str,
    folder: str | None,
    finished: Callable[[Program | NotTraced, int], object] | None = None,
    *,
    gpu: str | None = None,
    patience_s: float = math.inf,
) -> Forecasts:
    """The forecasts of ``cells``, which share a workload.

    Args:
        folder: where the workload's module is looked for first.
        finished: called for each program that is traced now, with the number of all programs.
        gpu: its name, which decides the kernel of attention.
        patience_s: for the tracing of one program; those that are missing after it are not traced.
    """
    why = {cell.id: reason for cell in cells if (reason := not_planned(cell))}
    planned = [cell for cell in cells if cell.id not in why]
    if not planned:
        return Forecasts({}, why)
    requests = _requests(planned, device, workload, folder, cudnn=prefers_cudnn(gpu))
    number = len({request.key for request in requests.values()})
    asked = list(requests.values())

    def tell(found: Program | NotTraced) -> None:
        if finished is not None:
            finished(found, number)

    by_key = traced(asked, folder, calibrations.folder(), tell, patience_s=patience_s)
    forecasts: dict[str, Forecast] = {}
    for cell in planned:
        program = by_key[requests[cell.id].key]
        if isinstance(program, Program):
            made = forecast(cell, program)
            if made.apart <= STRAIGHT:
                forecasts[cell.id] = made
            else:
                why[cell.id] = (
                    f"its memory does not grow in proportion to the batch: the peak of batch {BATCHES[-1]} is"
                    f" {percent(made.apart)} from the line through batches {BATCHES[0]} and {BATCHES[1]}"
                )
        else:
            why[cell.id] = f"its model could not be traced: {program.reason}"
    return Forecasts(forecasts, why)


def _requests(
    cells: Sequence[Cell], device: Device, workload: str, folder: str | None, *, cudnn: bool
) -> dict[str, ProgramRequest]:
    workloads.search(folder)
    workloads.load(workload)
    known, files = libraries(), sources.of(workload)
    return {
        cell.id: programs.request_of(
            cell, device, BATCHES, files, known, cudnn=cudnn, autocasts=backends.autocasts(cell)
        )
        for cell in cells
    }
