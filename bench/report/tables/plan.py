"""A plan in words and columns: memory, what fits, and bounds of the time."""

from collections.abc import Callable, Sequence
from statistics import median

from pydantic import JsonValue

from bench.records.calibration import Paces
from bench.records.devices import DeviceSpec
from bench.records.forecast import PARTS
from bench.report.plan import OFF, Checked, PlannedCell, PlannedRow
from bench.report.tables.table import Column, Table, table_of
from bench.units import UNKNOWN, counted, memory_size, ms, percent, rate, size

ESTIMATED = (
    "step, estimated: from the steps of the run's other cells and the work of this one: operations, bytes that"
    " operators move, bytes that ranks send, and calls of operators. n/a where the other cells are too few, or their"
    " work is of another kind or size."
)
FITS = {"yes": "yes", "close": "close", "no": "NO"}


def sentences(cells: Sequence[PlannedCell], device: DeviceSpec, ranks: int) -> list[str]:
    """What the plan is for, and what cannot fit at all."""
    said = [f"{ranks} × {device.name} with {memory_size(device.memory_bytes)} each: {device.source}."]
    impossible = [cell.plan.label for cell in cells if cell.impossible]
    if impossible:
        said.append(f"Cannot fit at any batch that may be tried: {'; '.join(impossible)}.")
    if any(cell.forecast and cell.forecast.assumed for cell in cells):
        said.append("The model branches on tensor values, which a plan lacks. The plan took each as true.")
    if known := [cell.forecast.apart for cell in cells if cell.forecast]:
        said.append(
            f"At a third batch, traced peaks differ from the linear prediction by at most {percent(max(known))}."
        )
    said += [f"Not planned: {cell.plan.label}: {cell.reason}." for cell in cells if cell.reason]
    return said


def tables(rows: Sequence[PlannedRow], device: DeviceSpec, fitted: Paces | None = None) -> list[Table]:
    """Memory at its peak by part, the largest batches, and of the time what is known: bounds, estimates.

    Args:
        fitted: where the estimates of ``rows`` come from.
    """
    if not rows:
        return []
    found = [_memory(rows), _batches(rows)]
    if any(row.bounds.step_s is not None for row in rows):
        found.append(_time(rows, device))
    if fitted is not None:
        found.append(_estimates(rows, fitted))
    return found


def _memory(rows: Sequence[PlannedRow]) -> Table:
    used = [part for part in PARTS if any(row.parts.get(part) for row in rows)]
    return table_of(
        "Memory of a rank at its peak",
        rows,
        [
            Column[PlannedRow]("cell", lambda row: row.cell.plan.label),
            Column[PlannedRow]("batch", lambda row: str(row.batch), numeric=True),
            *(Column[PlannedRow](part, _part(part), numeric=True) for part in used),
            Column[PlannedRow]("outside", lambda row: size(_allowance(row)), numeric=True),
            Column[PlannedRow]("peak", lambda row: size(row.needed_bytes), numeric=True, bold=lambda _: True),
            Column[PlannedRow](
                "of capacity", lambda row: percent(row.needed_bytes / row.cell.capacity_bytes), numeric=True
            ),
            Column[PlannedRow]("in", lambda row: row.when),
            Column[PlannedRow]("fits", lambda row: FITS[row.fits]),
        ],
        notes=(
            "From the program of one step on the meta device and from what each backend adds; nothing was measured."
            " gathered: whole units of sharded weights. outside: an allowance for what is not in tensors."
            f" close: a peak that is {percent(OFF)} higher does not fit, and one that is {percent(OFF)} lower may. The"
            " caching allocator may hold more than the peak.",
        ),
    )


def _part(part: str) -> Callable[[PlannedRow], str]:
    return lambda row: size(row.parts[part]) if row.parts.get(part) else "0"


def _allowance(row: PlannedRow) -> float:
    return 0.0 if row.cell.forecast is None else float(row.cell.forecast.allowance_bytes)


def _batches(rows: Sequence[PlannedRow]) -> Table:
    cells = list({id(row.cell): row.cell for row in rows}.values())
    return table_of(
        "Largest batch per rank",
        cells,
        [
            Column[PlannedCell]("cell", lambda cell: cell.plan.label),
            Column[PlannedCell]("capacity", lambda cell: memory_size(cell.capacity_bytes), numeric=True),
            Column[PlannedCell]("largest batch", lambda cell: str(cell.largest), numeric=True),
            Column[PlannedCell]("between", lambda cell: "{} and {}".format(*(cell.range or ())), numeric=True),
        ],
        notes=(
            f"between: if the tensors take {percent(OFF)} more, and if they take {percent(OFF)} less. On a CPU, the"
            " larger batch also leaves out the allowance for libraries.",
        ),
    )


def _time(rows: Sequence[PlannedRow], device: DeviceSpec) -> Table:
    priced = any(row.price is not None for row in rows)
    cost = [
        Column[PlannedRow](
            "samples per unit of price, at most", lambda row: rate(row.samples_per_unit_at_most), numeric=True
        )
    ]
    return table_of(
        "Time of a step: lower bounds, ms",
        rows,
        [
            Column[PlannedRow]("cell", lambda row: row.cell.plan.label),
            Column[PlannedRow]("batch", lambda row: str(row.batch), numeric=True),
            Column[PlannedRow]("compute", lambda row: ms(row.bounds.compute_s), numeric=True),
            Column[PlannedRow]("memory", lambda row: ms(row.bounds.memory_s), numeric=True),
            Column[PlannedRow]("communication", lambda row: ms(row.bounds.communication_s), numeric=True),
            Column[PlannedRow]("step, at least", lambda row: ms(row.bounds.step_s), numeric=True),
            Column[PlannedRow]("without overlap", lambda row: ms(row.bounds.apart_s), numeric=True),
            Column[PlannedRow]("binds", lambda row: row.bounds.binds or UNKNOWN),
            Column[PlannedRow]("samples/s, at most", lambda row: rate(row.samples_per_s_at_most), numeric=True),
            *(cost if priced else []),
        ],
        notes=(
            f"The most that the rates of {device.name} allow; a real step takes longer, often several times. compute:"
            " operations over the peak rate. memory: bytes that must be moved over the bandwidth. communication: bytes"
            " that each rank sends over the link. The step is at least the largest of the three.",
        ),
    )


def _estimates(rows: Sequence[PlannedRow], fitted: Paces) -> Table:
    return table_of(
        "Time of a step: estimated",
        rows,
        [
            Column[PlannedRow]("cell", lambda row: row.cell.plan.label),
            Column[PlannedRow]("batch", lambda row: str(row.batch), numeric=True),
            Column[PlannedRow]("step, ms", lambda row: ms(row.estimate_s), numeric=True),
            Column[PlannedRow]("samples/s", lambda row: rate(row.samples_per_s), numeric=True),
        ],
        notes=(
            f"From {counted(fitted.steps, 'measured step')} of {', '.join(fitted.runs)}, fitted at {fitted.fitted_at}."
            " Of cells that were left out of the fit, estimates were off by"
            f" {percent(fitted.off_median)} in the median and {percent(fitted.off_worst)} at most. n/a: the work is of"
            " another kind or size than what was measured.",
        ),
    )


def records(rows: Sequence[PlannedRow], cells: Sequence[PlannedCell]) -> list[dict[str, JsonValue]]:
    """One flat record a row, for other programs; base units. A cell without a forecast has one with the reason."""
    planned = [_record(row) for row in rows]
    return planned + [
        {"cell": cell.plan.cell.id, **cell.plan.axes, "reason": cell.reason} for cell in cells if cell.forecast is None
    ]


def _record(row: PlannedRow) -> dict[str, JsonValue]:
    low, high = row.cell.range or (None, None)
    return {
        "cell": row.cell.plan.cell.id,
        **row.cell.plan.axes,
        "batch": row.batch,
        "fits": row.fits,
        "needed_bytes": round(row.needed_bytes),
        "capacity_bytes": row.cell.capacity_bytes,
        **{f"{part}_bytes": round(row.parts.get(part, 0)) for part in PARTS},
        "outside_bytes": _allowance(row),
        "peak_in": row.when,
        "largest_batch": row.cell.largest,
        "largest_batch_low": low,
        "largest_batch_high": high,
        "compute_s_at_least": row.bounds.compute_s,
        "memory_s_at_least": row.bounds.memory_s,
        "communication_s_at_least": row.bounds.communication_s,
        "step_s_at_least": row.bounds.step_s,
        "binds": row.bounds.binds,
        "samples_per_s_global_at_most": row.samples_per_s_at_most,
        "step_s_estimated": row.estimate_s,
        "samples_per_s_global_estimated": row.samples_per_s,
        "samples_per_unit_at_most": row.samples_per_unit_at_most,
        "third_batch_apart": row.cell.forecast.apart if row.cell.forecast else None,
        "reason": None,
    }


def verdict(checked: Sequence[Checked]) -> str:
    """How far a plan is from the measurements."""
    if not checked:
        return "Nothing that was measured has a plan."
    errors = [abs(one.error) for one in checked]
    refuted = sum(not one.confirmed for one in checked)
    said = (
        f"{counted(len(checked), 'peak')}: median error {percent(median(errors))}, worst {percent(max(errors))}."
        f" {refuted} refuted: further from the plan than {percent(OFF)}."
    )
    if off := [abs(one.estimate_error) for one in checked if one.estimate_error is not None]:
        estimates = counted(len(off), "estimate")
        said += f" {estimates} of steps: median error {percent(median(off))}, worst {percent(max(off))}."
    return said


def check_table(checked: Sequence[Checked]) -> Table:
    """One row for each measured peak."""
    estimates = [
        Column[Checked]("step, estimated, ms", lambda one: ms(one.estimate_s), numeric=True),
        Column[Checked]("its error", lambda one: _signed(one.estimate_error), numeric=True),
    ]
    return table_of(
        "Plan and measurement",
        checked,
        [
            Column[Checked]("cell", lambda one: one.name),
            Column[Checked]("planned", lambda one: size(one.planned_bytes), numeric=True),
            Column[Checked]("measured", lambda one: size(one.measured_bytes), numeric=True),
            Column[Checked]("of", lambda one: "tensors" if one.tensors else "data segment"),
            Column[Checked]("error", lambda one: _signed(one.error), numeric=True),
            Column[Checked]("peak in", lambda one: one.when),
            Column[Checked]("step, at least, ms", lambda one: ms(one.least_s), numeric=True),
            Column[Checked]("step, ms", lambda one: ms(one.step_s), numeric=True),
            *(estimates if any(one.estimate_s for one in checked) else []),
            Column[Checked]("verdict", lambda one: "CONFIRMED" if one.confirmed else "REFUTED"),
        ],
        notes=(
            "Peak of the worst rank. tensors: torch's own, as max_memory_allocated counts them. data segment: its"
            " growth, on a CPU without measure.count_tensors. It includes what malloc keeps of freed tensors, which a"
            " plan does not predict.",
            "step, at least: the larger of compute, memory traffic and communication at the device's peak rates; n/a"
            " where these are not known. On a CPU, `bench calibrate` measures them. The verdict is on the peak.",
            *([ESTIMATED] if any(one.estimate_s for one in checked) else []),
        ),
    )


def _signed(share: float | None) -> str:
    return UNKNOWN if share is None else f"{share * 100:+.1f} %"


def check_records(checked: Sequence[Checked]) -> list[dict[str, JsonValue]]:
    """One flat record for each measured peak; base units."""
    return [
        {
            "cell": one.cell,
            "name": one.name,
            "batch": one.batch,
            "planned_bytes": round(one.planned_bytes),
            "measured_bytes": one.measured_bytes,
            "of_tensors": one.tensors,
            "error": one.error,
            "peak_in": one.when,
            "confirmed": one.confirmed,
            "step_s_at_least": one.least_s,
            "step_time_s_rank_max": one.step_s,
            "step_s_estimated": one.estimate_s,
        }
        for one in checked
    ]


def columns(checked: Sequence[Checked]) -> dict[tuple[str, int], dict[str, JsonValue]]:
    """What a plan adds to the record of a result, by its cell's id and its batch; base units."""
    return {
        (one.cell, one.batch): {
            "planned_peak_bytes": round(one.planned_bytes),
            "plan_error": one.error,
            "plan_confirmed": one.confirmed,
            "step_s_at_least": one.least_s,
            "step_s_estimated": one.estimate_s,
        }
        for one in checked
    }
