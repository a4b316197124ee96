"""All arithmetic of the report: from the raw samples of results to rows. Pure: no disk, no clock, no torch."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from pydantic import JsonValue

from bench.records.calibration import Calibration
from bench.records.figures import ALLOC_RETRIES, CAPACITY_SHARE, PEAK_RESERVED
from bench.records.outcome import KINDS, Failed, Ok, Oom, Reported, Result, Scripted
from bench.report.account import spent
from bench.report.contract import RUN, contract_of, machine_names
from bench.report.doubts import spoiled_rows
from bench.report.figures import launch_in, measured
from bench.report.launches import merged
from bench.report.rows import CellRows, Row, RowId, Summary
from bench.report.settings import distinguishing_settings, options_without_axis, settings_of
from bench.report.sources import Newest, newest_sources, stale_files
from bench.statistics.launches import Launch, Scatter, scatter_of
from bench.statistics.thrashing import CEILING, thrashing_batches

CellKey = tuple[str, str | None, str | None]
"""A cell's id; with the machine and the run where these tell two of it apart."""
Item = TypeVar("Item")


def summarize(
    results: Sequence[Result], calibrations: Sequence[Calibration] = (), newest: Newest | None = None
) -> Summary:
    """The summary of ``results``, in any order. A cell that ran on two unlike machines, or in two runs that
    `merge_runs` keeps apart, counts as two.

    Args:
        calibrations: what `bench calibrate` learnt; used for machines whose own launches say nothing of the scatter.
        newest: the sources that are not stale; by default, the newest of these results.
    """
    machines = tuple(_distinct(result.machine for result in results))
    names = machine_names(machines)
    by_cell: dict[CellKey, list[Result]] = {}
    for result in results:
        name, run = names[machines.index(result.machine)], result.axes.get(RUN)
        key = (result.attempt.cell.id, name, None if run is None else str(run))
        by_cell.setdefault(key, []).append(result)
    newest = newest or newest_sources(results)
    named = tuple(dict.fromkeys(name for result in results for name in result.axes))
    scatters = _scatters(by_cell, calibrations)

    def cells_with(named: Sequence[str]) -> tuple[CellRows, ...]:
        return tuple(_cell_rows(key, group, named, newest, scatters.get(key[1])) for key, group in by_cell.items())

    cells = cells_with(named)
    columns = distinguishing_settings([cell.rows[0].settings for cell in cells])
    if more := options_without_axis(cells, columns):
        cells = cells_with((*named, *more))
        columns = distinguishing_settings([cell.rows[0].settings for cell in cells])
    shared = cells[0].rows[0].settings if cells else {}
    summary = Summary(
        cells=cells,
        columns=columns,
        shared={name: value for name, value in shared.items() if name not in (*columns, "cell")},
        machines=machines,
        isolations=tuple(_distinct(result.isolation for result in results if result.isolation is not None)),
        n_attempts=len(results),
        started_at=min((result.started_at for result in results), default=None),
        wall_s=sum(result.wall_s for result in results),
        scatters=tuple(scatters.values()),
    )
    invalid = spoiled_rows(summary)
    return replace(summary, cells=tuple(replace(cell, invalid=invalid) for cell in cells)) if invalid else summary


def _scatters(
    by_cell: Mapping[CellKey, Sequence[Result]], calibrations: Sequence[Calibration]
) -> dict[str | None, Scatter]:
    """Between launches, by the name of the machine: from repeated launches, else from its calibration."""
    repeated: dict[str | None, dict[tuple[CellKey, int], list[Launch]]] = {}
    for key, group in by_cell.items():
        for result in group:
            if KINDS[result.outcome.kind].measured and not result.attempt.short:
                attempts = repeated.setdefault(key[1], {})
                attempts.setdefault((key, result.attempt.batch_per_rank), []).append(launch_in(result))
    scatters = {}
    for key, group in by_cell.items():
        if key[1] in scatters:
            continue
        own = scatter_of(repeated.get(key[1], {}).values(), "repeated launches of this run")
        machine = group[0].machine
        calibrated = [each for each in calibrations if not each.machine.unlike(machine)]
        if own or calibrated:
            scatters[key[1]] = own or _calibrated(calibrated[-1])
    return scatters


def _calibrated(learnt: Calibration) -> Scatter:
    return Scatter(sd=learnt.sd, degrees=learnt.degrees, source=f"`bench calibrate` on {learnt.measured_at[:10]}")


def row_of(
    result: Result,
    settings: dict[str, JsonValue] | None = None,
    row_id: RowId | None = None,
    scatter: Scatter | None = None,
    newest: Newest | None = None,
) -> Row:
    """The row of one result.

    Args:
        settings: those of its cell; saves computing them again.
        row_id: its name in a summary; by default, that of the only such attempt.
        scatter: between launches on its machine, if known.
        newest: the sources to compare its own with; by default, with none.
    """
    attempt, outcome = result.attempt, result.outcome
    return Row(
        id=row_id or RowId((attempt.cell.id,), attempt.batch_per_rank, attempt.short),
        settings=settings or settings_of(result),
        batch_per_rank=attempt.batch_per_rank,
        batch_global=attempt.batch_global,
        world_size=attempt.cell.num_processes,
        outcome=outcome.kind,
        reason=_reason(result),
        fault=outcome.fault if isinstance(outcome, Failed) else None,
        measured=measured(result, scatter),
        short=attempt.short,
        n_steps=attempt.measure.steps,
        retried=result.retried,
        conditions=result.conditions,
        device=result.machine.hardware.device,
        accelerators=result.machine.accelerators,
        notes=result.notes,
        launch=attempt.launch,
        stale=stale_files(result, newest) if newest else (),
    )


def _cell_rows(
    key: CellKey, results: Sequence[Result], named: Sequence[str], newest: Newest, scatter: Scatter | None
) -> CellRows:
    cell_id, machine, _ = key
    # Where a batch was measured in full, its short attempt has nothing to add.
    full = {result.attempt.batch_per_rank for result in results if not result.attempt.short}
    shown = [result for result in results if not (result.attempt.short and result.attempt.batch_per_rank in full)]
    first = results[0]
    on_machine: dict[str, JsonValue] = {} if machine is None else {"machine": machine}

    def settings(result: Result) -> dict[str, JsonValue]:
        return {**settings_of(result, named, cell_id), **on_machine}

    shared, names = settings(first), tuple(part for part in key if part is not None)
    seen: Counter[tuple[int, bool, int]] = Counter()
    launches: dict[RowId, list[Row]] = {}
    for result in shown:
        attempt = result.attempt
        launch = attempt.batch_per_rank, attempt.short, attempt.launch
        row_id = RowId(names, *launch[:2], repeat=seen[launch])
        seen[launch] += 1
        # Axes may be named in another order in another run, and imported rows may state different fields.
        of_row = shared if _named_alike(result, first) else settings(result)
        launches.setdefault(row_id, []).append(row_of(result, of_row, row_id, scatter, newest))
    rows = [merged(group) for group in launches.values()]
    rows.sort(key=lambda row: row.batch_per_rank)
    knows_most = max(results, key=lambda result: (isinstance(result.outcome, Ok), len(result.stated or ())))
    return CellRows(
        cell=first.attempt.cell,
        contract=contract_of(knows_most),
        rows=tuple(rows),
        spent=spent(results),
        thrashing=_thrashing(rows),
    )


class _Fit(NamedTuple):
    """What decides whether a batch thrashes."""

    batch: int
    rate: float
    at_ceiling: bool
    retried: bool


def _thrashing(rows: Sequence[Row]) -> frozenset[int]:
    return thrashing_batches(
        _Fit(
            batch=row.batch_per_rank,
            rate=measured.samples_per_s_global,
            # An allocator that keeps no blocks cannot thrash.
            at_ceiling=measured.of(PEAK_RESERVED) is not None and (measured.of(CAPACITY_SHARE) or 0) >= CEILING,
            retried=(measured.of(ALLOC_RETRIES) or 0) > 0,
        )
        for row in rows
        if (measured := row.measured)
    )


def _named_alike(one: Result, other: Result) -> bool:
    return list(one.axes) == list(other.axes) and one.axes == other.axes and one.stated == other.stated


def _reason(result: Result) -> str | None:
    outcome = result.outcome
    match outcome:
        case Ok() | Reported() | Scripted():
            return None
        case Oom(phase=str()) | Failed(phase=str()):
            rank = "" if outcome.rank is None else f"rank {outcome.rank} "
            reason = f"{rank}in {outcome.phase}: {outcome.reason}"
        case _:
            reason = outcome.reason
    if isinstance(outcome, Failed) and outcome.fault != "error":
        fault = outcome.fault.replace("_", " ")
        reason = reason if outcome.reason.startswith(fault) else f"{fault}: {reason}"
    return reason if result.retried is None else f"second try, {reason} (first try: {result.retried})"


def _distinct(items: Iterable[Item]) -> list[Item]:
    seen: list[Item] = []
    for item in items:
        if item not in seen:
            seen.append(item)
    return seen
