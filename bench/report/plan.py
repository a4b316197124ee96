"""What a plan says of the cells of a matrix: what fits, how large a batch may be, and what it costs at least. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from bench.records.devices import DeviceSpec
from bench.records.forecast import Forecast
from bench.records.plan import CellPlan
from bench.report.bounds import Bounds, bounds

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
