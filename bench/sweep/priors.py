"""The plan from which a search begins, where a cell's model can be traced: a prior, and never a verdict."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from bench.errors import InputError
from bench.records.cell import Cell
from bench.records.forecast import Forecast
from bench.records.machine import Hardware
from bench.records.plan import CellPlan
from bench.search import Line, Observation, Prior
from bench.sweep.forecasts import forecasts_of

PATIENCE_S = 60.0
"""For the tracing of one model; a search that has no plan by then begins without one."""


class Priors:
    """The plans of a sweep's searches. The first that is asked for traces the models of all, beside the start of the
    rank servers: later, it would take cores from attempts.

    Args:
        folder: where the workload's module is looked for first.
        waiting: shows what takes time.
        gpu: as `forecasts_of`.
    """

    def __init__(
        self,
        plans: Sequence[CellPlan],
        hardware: Hardware,
        folder: str | None,
        waiting: Callable[[str], object],
        gpu: str | None = None,
    ) -> None:
        self._cells = [plan.cell for plan in plans if plan.search]
        self._hardware, self._folder, self._waiting, self._gpu = hardware, folder, waiting, gpu
        self._forecasts: dict[str, Forecast] | None = None

    def of(self, cell: Cell) -> Prior | None:
        """What is expected of ``cell``; None where it has no plan."""
        if self._forecasts is None:
            self._waiting("planning the memory of searches")
            self._forecasts = self._made()
        forecast = self._forecasts.get(cell.id)
        return None if forecast is None else prior_of(forecast, self._hardware)

    def _made(self) -> dict[str, Forecast]:
        found: dict[str, Forecast] = {}
        for workload in dict.fromkeys(cell.workload for cell in self._cells):
            cells = [cell for cell in self._cells if cell.workload == workload]
            with suppress(InputError, OSError):  # of a workload that ranks refuse, too; of a full /tmp
                device = self._hardware.device
                made = forecasts_of(cells, device, workload, self._folder, gpu=self._gpu, patience_s=PATIENCE_S)
                found |= made.found
        return found


def off(prior: Prior, seen: Iterable[Observation]) -> float | None:
    """By which share of capacity the largest peak of ``seen`` is above the plan; None without a peak."""
    peaks = [(o.batch, o.peak) for o in seen if o.fresh and o.peak]
    return max(peaks)[1] - prior.at(max(peaks)[0]) if peaks else None


def prior_of(forecast: Forecast, hardware: Hardware) -> Prior:
    """Shares of what a rank may use."""
    limit_bytes = forecast.cell.memory_limit_bytes
    outside_bytes = forecast.allowance_bytes - (forecast.beside_limit_bytes if limit_bytes else 0)
    capacity_bytes = limit_bytes or hardware.memory_bytes
    return Prior(
        tuple(
            Line(
                (line.at_zero + outside_bytes) / capacity_bytes,
                (line.sample_bytes + forecast.input_bytes) / capacity_bytes,
            )
            for line in forecast.lines
        )
    )
