"""What a plan says of the cells of a matrix: what fits, how large a batch may be, and what it costs at least. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from bench.records.calibration import Pace, Rates
from bench.records.devices import DeviceSpec, spec_of
from bench.records.figures import PEAK_ALLOCATED
from bench.records.forecast import Forecast
from bench.records.plan import CellPlan
from bench.records.verdict import Goal
from bench.report.estimate import Bounds, Step, bounds, estimate_s, left_out, work
from bench.report.naming import row_name
from bench.report.rows import Rank, Row, RowId, Summary

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
    skipped: bool = False
    """Whether `bench run` would skip the cell, too."""
    capacity_bytes: int
    """Memory of the device, or the limit of the cell."""
    goal: Goal | None = None
    """Of the cell's search, which tries only some batches; None if the matrix lists batches."""

    @property
    def largest(self) -> int | None:
        """The largest batch per rank that fits by the forecast, of those that may be tried; None without a forecast."""
        return None if self.forecast is None else self._largest(self.forecast, off=0.0)

    @property
    def range(self) -> tuple[int, int] | None:
        """The largest batch if the forecast is off by `OFF`, to either side."""
        if self.forecast is None:
            return None
        spare = _uncertain_bytes(self.forecast)
        return self._largest(self.forecast, off=OFF), self._largest(self.forecast, off=-OFF, spare=spare)

    def _largest(self, forecast: Forecast, *, off: float, spare: int = 0) -> int:
        found = forecast.largest(self.capacity_bytes + spare, off=off)
        return found if self.goal is None else self.goal.down(min(found, self.goal.cap))

    @property
    def unknown(self) -> bool:
        """Whether the cell would be measured and cannot be planned."""
        return self.forecast is None and not self.skipped

    @property
    def impossible(self) -> bool:
        """Whether no batch that may be tried can fit, even if less is needed than forecast."""
        if self.forecast is None:
            return False
        most = self.forecast.largest(self.capacity_bytes + _uncertain_bytes(self.forecast), off=-OFF)
        return most < (self.goal.granularity if self.goal and not self.plan.batches else 1)


@dataclass(frozen=True, kw_only=True)
class PlannedRow:
    """One cell at one batch."""

    cell: PlannedCell
    forecast: Forecast
    batch: int
    searched: bool
    """Whether the matrix names no batch: this is the largest that fits."""
    fits: Fits
    needed_bytes: float
    parts: dict[str, float]
    when: str
    """The stage of the step in which the peak is."""
    bounds: Bounds
    estimate_s: float | None = None
    """None where the device has no paces, or these do not reach so far."""
    price: float | None = None
    """Of one device for an hour."""

    @property
    def micro_batches(self) -> int:
        """Of one optimizer step."""
        return self.cell.plan.cell.micro_batches(self.batch)

    @property
    def samples_per_s_at_most(self) -> float | None:
        """Over all ranks."""
        return self._samples_per_s(self.bounds.step_s)

    @property
    def samples_per_s(self) -> float | None:
        """The estimate, over all ranks."""
        return self._samples_per_s(self.estimate_s)

    def _samples_per_s(self, step_s: float | None) -> float | None:
        return self.cell.plan.cell.samples_per_step(self.batch) / step_s if step_s else None

    @property
    def samples_per_unit_at_most(self) -> float | None:
        """Samples for one unit of the currency of ``price``."""
        if self.price is None or self.samples_per_s_at_most is None:
            return None
        return self.samples_per_s_at_most * 3600 / (self.price * self.cell.plan.cell.num_processes)


def rows(
    cells: Sequence[PlannedCell],
    device: DeviceSpec,
    price: float | None = None,
    paces: Mapping[str, Pace] = MappingProxyType({}),
) -> list[PlannedRow]:
    """A row for each batch that the matrix names; of a search, for the largest batch that fits, or the smallest that it
    would try. Prices and paces are of the device."""
    return [row for cell in cells if cell.forecast for row in _rows(cell, cell.forecast, device, price, paces)]


def _rows(
    cell: PlannedCell, forecast: Forecast, device: DeviceSpec, price: float | None, paces: Mapping[str, Pace]
) -> Iterator[PlannedRow]:
    smallest = cell.goal.granularity if cell.goal else 1
    found = [max(smallest, cell.largest or 0)] if cell.plan.search else []
    for number, searched in [*((batch, False) for batch in cell.plan.batches), *((batch, True) for batch in found)]:
        needed = forecast.needed_bytes(number)
        yield PlannedRow(
            cell=cell,
            forecast=forecast,
            batch=number,
            searched=searched,
            fits=_fits(needed, needed - _uncertain_bytes(forecast), cell.capacity_bytes),
            needed_bytes=needed,
            parts=forecast.parts(number),
            when=forecast.line(number).when,
            bounds=bounds(forecast, device, number),
            estimate_s=estimate_s(work(forecast, number), paces),
            price=price,
        )


def _fits(needed_bytes: float, sure_bytes: float, capacity_bytes: float) -> Fits:
    if needed_bytes * (1 + OFF) <= capacity_bytes:
        return "yes"
    return "no" if sure_bytes * (1 - OFF) > capacity_bytes else "close"


def _uncertain_bytes(forecast: Forecast) -> int:
    """What a rank may not need at all: on a CPU, the allowance for libraries, which differs between models and runs."""
    return forecast.allowance_bytes if forecast.device == "cpu" else 0


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A measured row beside what a plan says of it."""

    id: RowId
    name: str
    planned_bytes: float
    measured_bytes: int
    tensors: bool = True
    """Whether tensors were counted, and not the data segment."""
    when: str
    least_s: float | None = None
    """The lower bound of the step; None where the rates of the device are not known."""
    step_s: float | None = None
    estimate_s: float | None = None
    """Of the step, from the other cells of the run; None where these are too few or too unlike."""

    @property
    def estimate_error(self) -> float | None:
        """By which share the estimate is above the measured step."""
        return self.estimate_s / self.step_s - 1 if self.estimate_s and self.step_s else None

    @property
    def error(self) -> float:
        """By which share the plan is above the measurement."""
        return self.planned_bytes / self.measured_bytes - 1

    @property
    def confirmed(self) -> bool:
        """Whether the plan lies within `OFF` of the measurement."""
        return abs(self.error) <= OFF


def check(summary: Summary, forecasts: Mapping[str, Forecast], rates: Rates | None = None) -> list[Checked]:
    """The measured peaks of a run beside its forecasts, which are by the cell's id.

    Of torch's tensors, where these were counted: on a GPU, and on a CPU with `measure.count_tensors`. Else the growth
    of the data segment, which the plan's allowance is part of, and which includes what malloc keeps.

    Args:
        rates: of the CPU that was measured, if known.
    """
    found: list[Checked] = []
    rows = [(cell.cell.id, row) for cell in summary.cells for row in cell.rows if cell.cell.id in forecasts]
    for cell_id, row in rows:
        forecast = forecasts[cell_id]
        if row.measured and row.device == forecast.device:
            counted = _counted_bytes(row.ranks)
            peak = counted or row.measured.of(PEAK_ALLOCATED)
            if not peak or peak <= 0:
                continue
            tensors = counted is not None or forecast.device != "cpu"
            planned = forecast.allocated_bytes if tensors else forecast.needed_bytes
            found.append(
                Checked(
                    id=row.id,
                    name=row_name(summary, row),
                    planned_bytes=planned(row.batch_per_rank),
                    measured_bytes=round(peak),
                    tensors=tensors,
                    when=forecast.line(row.batch_per_rank).when,
                    least_s=bounds(forecast, _device(row, rates), row.batch_per_rank).step_s,
                    step_s=None if row.short else row.measured.step_time_s_rank_max,
                )
            )
    estimates = left_out(steps_of(found, forecasts))
    return [replace(checked, estimate_s=estimate) for checked, estimate in zip(found, estimates, strict=True)]


def steps_of(checked: Iterable[Checked], forecasts: Mapping[str, Forecast]) -> list[Step]:
    """The measured steps with their work, to estimate others from."""
    return [
        Step(
            cell=attempt.id.cell[0],
            work=work(forecasts[attempt.id.cell[0]], attempt.id.batch_per_rank),
            step_s=attempt.step_s,
        )
        for attempt in checked
    ]


def _device(row: Row, rates: Rates | None) -> DeviceSpec:
    """What is known of the device that a row was measured on; its memory has no part in bounds."""
    if row.device != "cpu":
        known = spec_of(row.accelerators[0]) if row.accelerators else None
        return known or DeviceSpec(name="unknown", memory_bytes=1, source="none")
    bare = DeviceSpec(name="CPU", memory_bytes=1, source="bench calibrate")
    return bare.model_copy(update=rates.of_a_device) if rates else bare


def _counted_bytes(ranks: Sequence[Rank]) -> int | None:
    """Of the worst rank; None if a rank did not count."""
    peaks = [rank.raw.memory.peak_tensor_bytes for rank in ranks]
    known = [peak for peak in peaks if peak is not None]
    return max(known) if known and len(known) == len(peaks) else None
