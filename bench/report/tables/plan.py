"""A plan in words and columns: memory, what fits, and bounds of the time."""

from collections.abc import Sequence
from functools import partial
from statistics import median

from pydantic import JsonValue

from bench.records.calibration import Paces
from bench.records.devices import DeviceSpec
from bench.records.forecast import PARTS
from bench.report.naming import MICRO_BATCHES_CAPTION
from bench.report.plan import OFF, Checked, PlannedCell, PlannedRow
from bench.report.rows import RowId
from bench.report.tables.table import Column, Number, Table, table_of
from bench.units import UNKNOWN, amount, counted, memory_size, ms, percent, rate, size

ESTIMATED = (
    "step, estimated: from the steps of the run's other cells and the work of this one: operations, bytes that"
    " operators move, bytes that ranks send, and calls of operators. n/a where the other cells are too few, or their"
    " work is of another kind or size."
)
MOST = 4
"""Models of one sentence."""
FITS = {"yes": "yes", "close": "close", "no": "NO"}


def sentences(cells: Sequence[PlannedCell], device: DeviceSpec, ranks: int) -> list[str]:
    """What the plan is for, and what cannot fit at all."""
    of_cells = [cell.plan.cell for cell in cells]
    names = dict.fromkeys(f"{cell.workload} {cell.options.get('preset', '')}".rstrip() for cell in of_cells)
    sizes = sorted({cell.forecast.regime.parameters for cell in cells if cell.forecast})
    parameters = [f"{_some(list(map(amount, sizes)))} parameters"] if sizes else []
    said = [
        f"{', '.join([_some(list(names)), *parameters])}.",
        f"{ranks} × {device.name} with {memory_size(device.memory_bytes)} each: {device.source}.",
    ]
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


def _some(texts: Sequence[str]) -> str:
    return " or ".join([*texts[:MOST], *(["more"] if len(texts) > MOST else [])])


def tables(rows: Sequence[PlannedRow], device: DeviceSpec, fitted: Paces | None = None) -> list[Table]:
    """Memory at its peak by part, the largest batches, and of the time what is known: bounds, and estimates, which come
    from what was ``fitted``."""
    if not rows:
        return []
    found = [_memory(rows), _batches(rows)]
    if any(row.bounds.step_s is not None for row in rows):
        found.append(_time(rows, device))
    if fitted is not None:
        found.append(_estimates(rows, fitted))
    return found


def _identity(rows: Sequence[PlannedRow]) -> list[Column[PlannedRow]]:
    """The columns that name a row, with the micro-batches of a step where the name of a cell lacks them."""
    plans = [row.cell.plan for row in rows]
    several = any(plan.cell.accumulates and MICRO_BATCHES_CAPTION not in plan.axes for plan in plans)
    return [
        Column("cell", lambda row: row.cell.plan.label),
        Number("batch", lambda row: str(row.batch)),
        *([Number[PlannedRow](MICRO_BATCHES_CAPTION, lambda row: str(row.micro_batches))] if several else []),
    ]


def _memory(rows: Sequence[PlannedRow]) -> Table:
    used = [part for part in PARTS if any(row.parts.get(part) for row in rows)]
    return table_of(
        "Memory of a rank at its peak",
        rows,
        [
            *_identity(rows),
            *(Number[PlannedRow](part, partial(_part, part)) for part in used),
            Number("outside", lambda row: size(row.forecast.allowance_bytes)),
            Number("peak", lambda row: size(row.needed_bytes), bold=lambda _: True),
            Number("memory used", lambda row: percent(row.needed_bytes / row.cell.capacity_bytes)),
            Column("in", lambda row: row.when),
            Column("fits", lambda row: FITS[row.fits]),
        ],
        notes=(
            "From the program of one step on the meta device and from what each backend adds; nothing was measured."
            " gathered: whole units of sharded weights. outside: an allowance for what is not in tensors."
            f" close: a peak that is {percent(OFF)} higher does not fit, and one that is {percent(OFF)} lower may. The"
            " caching allocator may hold more than the peak.",
        ),
    )


def _part(part: str, row: PlannedRow) -> str:
    return size(row.parts[part]) if row.parts.get(part) else "0"


def _batches(rows: Sequence[PlannedRow]) -> Table:
    cells = list({id(row.cell): row.cell for row in rows}.values())
    return table_of(
        "Largest batch per rank",
        cells,
        [
            Column("cell", lambda cell: cell.plan.label),
            Number("capacity", lambda cell: memory_size(cell.capacity_bytes)),
            Number("largest batch", lambda cell: str(cell.largest)),
            Number("between", lambda cell: "{} and {}".format(*(cell.range or ()))),
        ],
        notes=(
            f"between: if the tensors take {percent(OFF)} more, and if they take {percent(OFF)} less. On a CPU, the"
            " larger batch also leaves out the allowance for libraries.",
        ),
    )


def _time(rows: Sequence[PlannedRow], device: DeviceSpec) -> Table:
    priced = any(row.price is not None for row in rows)
    cost: list[Column[PlannedRow]] = [
        Number("samples per unit of price, at most", lambda row: rate(row.samples_per_unit_at_most))
    ]
    return table_of(
        "Time of a step: lower bounds, ms",
        rows,
        [
            *_identity(rows),
            Number("compute", lambda row: ms(row.bounds.compute_s)),
            Number("memory", lambda row: ms(row.bounds.memory_s)),
            Number("communication", lambda row: ms(row.bounds.communication_s)),
            Number("step, at least", lambda row: ms(row.bounds.step_s)),
            Number("without overlap", lambda row: ms(row.bounds.apart_s)),
            Column("binds", lambda row: row.bounds.binds or UNKNOWN),
            Number("samples/s, at most", lambda row: rate(row.samples_per_s_at_most)),
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
            *_identity(rows),
            Number("step, ms", lambda row: ms(row.estimate_s)),
            Number("samples/s", lambda row: rate(row.samples_per_s)),
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
        MICRO_BATCHES_CAPTION: row.micro_batches,
        "fits": row.fits,
        "needed_bytes": round(row.needed_bytes),
        "capacity_bytes": row.cell.capacity_bytes,
        **{f"{part}_bytes": round(row.parts.get(part, 0)) for part in PARTS},
        "outside_bytes": float(row.forecast.allowance_bytes),
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
        "third_batch_apart": row.forecast.apart,
        "reason": None,
    }


def verdict(checked: Sequence[Checked]) -> str:
    """How far a plan is from the measurements."""
    if not checked:
        return "Nothing that was measured has a plan."
    errors = [abs(peak.error) for peak in checked]
    refuted = sum(not peak.confirmed for peak in checked)
    said = (
        f"{counted(len(checked), 'peak')}: median error {percent(median(errors))}, worst {percent(max(errors))}."
        f" {refuted} refuted: further from the plan than {percent(OFF)}."
    )
    if off := [abs(peak.estimate_error) for peak in checked if peak.estimate_error is not None]:
        estimates = counted(len(off), "estimate")
        said += f" {estimates} of steps: median error {percent(median(off))}, worst {percent(max(off))}."
    return said


def check_table(checked: Sequence[Checked]) -> Table:
    """One row for each measured peak."""
    estimates: list[Column[Checked]] = [
        Number("step, estimated, ms", lambda peak: ms(peak.estimate_s)),
        Number("its error", lambda peak: _signed(peak.estimate_error)),
    ]
    return table_of(
        "Plan and measurement",
        checked,
        [
            Column("cell", lambda peak: peak.name),
            Number("planned", lambda peak: size(peak.planned_bytes)),
            Number("measured", lambda peak: size(peak.measured_bytes)),
            Column("of", lambda peak: "tensors" if peak.tensors else "data segment"),
            Number("error", lambda peak: _signed(peak.error)),
            Column("peak in", lambda peak: peak.when),
            Number("step, at least, ms", lambda peak: ms(peak.least_s)),
            Number("step, ms", lambda peak: ms(peak.step_s)),
            *(estimates if any(peak.estimate_s for peak in checked) else []),
            Column("verdict", lambda peak: "CONFIRMED" if peak.confirmed else "REFUTED"),
        ],
        notes=(
            "Peak of the worst rank. tensors: torch's own, as max_memory_allocated counts them. data segment: its"
            " growth, on a CPU without measure.count_tensors. It includes what malloc keeps of freed tensors, which a"
            " plan does not predict.",
            "step, at least: the larger of compute, memory traffic and communication at the device's peak rates; n/a"
            " where these are not known. On a CPU, `bench calibrate` measures them. The verdict is on the peak.",
            *([ESTIMATED] if any(peak.estimate_s for peak in checked) else []),
        ),
    )


def _signed(share: float | None) -> str:
    return UNKNOWN if share is None else f"{share * 100:+.1f} %"


def check_records(checked: Sequence[Checked]) -> list[dict[str, JsonValue]]:
    """One flat record for each measured peak; base units."""
    return [
        {
            "cell": peak.id.cell[0],
            "name": peak.name,
            "batch": peak.id.batch_per_rank,
            "planned_bytes": round(peak.planned_bytes),
            "measured_bytes": peak.measured_bytes,
            "of_tensors": peak.tensors,
            "error": peak.error,
            "peak_in": peak.when,
            "confirmed": peak.confirmed,
            "step_s_at_least": peak.least_s,
            "step_time_s_rank_max": peak.step_s,
            "step_s_estimated": peak.estimate_s,
        }
        for peak in checked
    ]


def columns(checked: Sequence[Checked]) -> dict[RowId, dict[str, JsonValue]]:
    """What a plan adds to the records of rows; base units."""
    return {
        peak.id: {
            "planned_peak_bytes": round(peak.planned_bytes),
            "plan_error": peak.error,
            "plan_confirmed": peak.confirmed,
            "step_s_at_least": peak.least_s,
            "step_s_estimated": peak.estimate_s,
        }
        for peak in checked
    }
