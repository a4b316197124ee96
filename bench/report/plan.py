"""What a plan says of the cells of a matrix: what fits, how large a batch may be, and what it costs at least. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from bench.records.devices import DeviceSpec
from bench.records.forecast import Forecast
from bench.records.plan import CellPlan
from bench.report.bounds import Bounds, bounds
from bench.report.naming import row_name
from bench.report.rows import Summary

OFF = 0.10
"""By which share a forecast may be off: see reports/plan_cpu.md."""

Fits = Literal["yes", "close", "no"]


@dataclass(frozen=True, kw_only=True)
class PlannedCell:
    """One cell of a plan."""

    plan: CellPlan
    forecast: Forecast | None
    reason: str | None = None
    """Why there is no forecast."""
    capacity_bytes: int
    """Memory of the device, or the limit of the cell."""

    @property
    def largest(self) -> int | None:
        """The largest batch per rank that fits by the forecast; None without one."""
        return None if self.forecast is None else self.forecast.largest(self.capacity_bytes)

    @property
    def range(self) -> tuple[int, int] | None:
        """The largest batch if the forecast is off by `OFF`, to either side."""
        if self.forecast is None:
            return None
        low, high = (self.forecast.largest(self.capacity_bytes, off=off) for off in (OFF, -OFF))
        return low, high

    @property
    def impossible(self) -> bool:
        """Whether no batch can fit, even if less is needed than forecast."""
        return self.range is not None and self.range[1] < 1


@dataclass(frozen=True, kw_only=True)
class PlannedRow:
    """One cell at one batch."""

    cell: PlannedCell
    batch: int
    searched: bool
    """Whether the matrix names no batch: this is the largest that fits."""
    fits: Fits
    needed_bytes: float
    parts: dict[str, float]
    when: str
    """The stage of the step in which the peak is."""
    bounds: Bounds
    price: float | None = None
    """Of one device for an hour."""

    @property
    def samples_per_s_at_most(self) -> float | None:
        """Over all ranks."""
        step_s = self.bounds.step_s
        return self.batch * self.cell.plan.cell.num_processes / step_s if step_s else None

    @property
    def samples_per_unit_at_most(self) -> float | None:
        """Samples for one unit of the currency of ``price``."""
        if self.price is None or self.samples_per_s_at_most is None:
            return None
        return self.samples_per_s_at_most * 3600 / (self.price * self.cell.plan.cell.num_processes)


def rows(cells: Sequence[PlannedCell], device: DeviceSpec, price: float | None = None) -> list[PlannedRow]:
    """A row for each batch that the matrix names; of a search, for the largest batch that fits, or batch 1 if none."""
    return [row for cell in cells if cell.forecast for row in _rows(cell, cell.forecast, device, price)]


def _rows(cell: PlannedCell, forecast: Forecast, device: DeviceSpec, price: float | None) -> Iterator[PlannedRow]:
    for batch in cell.plan.batches:
        number = max(1, cell.largest or 0) if batch == "probe" else batch
        needed = forecast.needed_bytes(number)
        yield PlannedRow(
            cell=cell,
            batch=number,
            searched=batch == "probe",
            fits=_fits(needed, cell.capacity_bytes),
            needed_bytes=needed,
            parts=forecast.parts(number),
            when=forecast.line(number).when,
            bounds=bounds(forecast, device, number),
            price=price,
        )


def _fits(needed_bytes: float, capacity_bytes: float) -> Fits:
    if needed_bytes * (1 + OFF) <= capacity_bytes:
        return "yes"
    return "no" if needed_bytes * (1 - OFF) > capacity_bytes else "close"


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A measured row beside what a plan says of it."""

    cell: str
    """Its id."""
    name: str
    batch: int
    planned_bytes: float
    measured_bytes: int
    when: str

    @property
    def error(self) -> float:
        """By which share the plan is above the measurement."""
        return self.planned_bytes / self.measured_bytes - 1

    @property
    def confirmed(self) -> bool:
        """Whether the measurement lies within `OFF` of the plan."""
        return abs(self.measured_bytes / self.planned_bytes - 1) <= OFF


def check(summary: Summary, forecasts: Mapping[str, Forecast]) -> list[Checked]:
    """The measured peaks of a run beside its forecasts, which are by the cell's id.

    On a GPU, the peak of torch's tensors. On a CPU, the growth of the data segment, which the plan's allowance is part
    of, and which includes what malloc keeps.
    """
    found = []
    for cell in summary.cells:
        forecast = forecasts.get(cell.cell.id)
        for row in cell.rows if forecast else ():
            peak = row.measured.peak_allocated_bytes_rank_max if row.measured else None
            if forecast is None or not peak or peak <= 0:
                continue
            on_cpu = forecast.device == "cpu"
            planned = forecast.needed_bytes if on_cpu else forecast.allocated_bytes
            found.append(
                Checked(
                    cell=cell.cell.id,
                    name=row_name(summary, row),
                    batch=row.batch_per_rank,
                    planned_bytes=planned(row.batch_per_rank),
                    measured_bytes=peak,
                    when=forecast.line(row.batch_per_rank).when,
                )
            )
    return found
