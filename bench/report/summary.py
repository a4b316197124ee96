"""All arithmetic of the report: from the raw samples of results to rows. Pure: no disk, no clock, no torch."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from pydantic import JsonValue

from bench.records.calibration import Calibration
from bench.records.figures import ALLOC_RETRIES, CAPACITY_SHARE, PEAK_RESERVED
from bench.records.machine import Machine
from bench.records.outcome import KINDS, Failed, Ok, Oom, Reported, Result, Scripted
from bench.records.plan import COST_OPTIONS
from bench.records.sources import LastCommand, Sources, differing
from bench.report.controlled import (
    ID,
    PARTIAL,
    RUN,
    controlled_of,
    distinguishing_settings,
    machine_names,
    options_without_axis,
    settings_of,
)
from bench.report.doubts import spoiled_rows
from bench.report.figures import launch_in, measured, merged
from bench.report.rows import CellRows, Row, RowId, Summary
from bench.statistics.launches import ASSUMED, Launch, LaunchVariation, more_than_assumed, variation_of
from bench.statistics.thrashing import CEILING, Fit, thrashing_batches
from bench.units import UNKNOWN, percent

CellKey = tuple[str, str | None, str | None]
"""A cell's id; with the machine and the run where these tell two of it apart."""
ONE_PAIR = f"the one repeated launch of this run, trusted like the assumed {percent(ASSUMED.sd)}"
Item = TypeVar("Item")
Workload = tuple[str, tuple[str, ...], str]
"""A workload, the command of a script, and the run where `merge_runs` keeps runs apart."""
Newest = Mapping[Workload, Sources]


def summarize(
    results: Sequence[Result],
    calibrations: Sequence[Calibration] = (),
    newest: Newest | None = None,
    cost_options: Iterable[str] = COST_OPTIONS,
) -> Summary:
    """The summary of ``results``, in any order. A cell that ran on two unlike machines, or in two runs that
    `merge_runs` keeps apart, counts as two.

    Args:
        calibrations: what `bench calibrate` learnt; used for machines whose own launches do not show how they vary.
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
    if any(result.attempt.cell.num_nodes > 1 for result in results):
        named += ("num_nodes",)
    variations = _variations(by_cell, calibrations)

    def cells_with(named: Sequence[str]) -> tuple[CellRows, ...]:
        return tuple(_cell_rows(key, group, named, newest, variations.get(key[1])) for key, group in by_cell.items())

    cells = cells_with(named)
    columns = distinguishing_settings([cell.rows[0].settings for cell in cells])
    if more := options_without_axis([(cell.cell, cell.rows[0].settings) for cell in cells], columns):
        cells = cells_with((*named, *more))
        columns = distinguishing_settings([cell.rows[0].settings for cell in cells])
    shared = dict(cells[0].rows[0].settings) if cells else {}
    for cell in cells:
        for name in shared.keys() - cell.rows[0].settings.keys() - PARTIAL:
            del shared[name]
    summary = Summary(
        cells=cells,
        columns=columns,
        shared={name: value for name, value in shared.items() if name not in (*columns, ID)},
        machines=machines,
        isolations=tuple(_distinct(result.isolation for result in results if result.isolation is not None)),
        n_attempts=len(results),
        started_at=min((result.started_at for result in results), default=None),
        wall_s=sum(result.wall_s for result in results),
        cost_options=frozenset(cost_options),
        variations=tuple(variations.values()),
    )
    invalid = spoiled_rows(summary)
    return replace(summary, cells=tuple(replace(cell, invalid=invalid) for cell in cells)) if invalid else summary


def _variations(
    by_cell: Mapping[CellKey, Sequence[Result]], calibrations: Sequence[Calibration]
) -> dict[str | None, LaunchVariation]:
    """Between launches, by the name of the machine: from repeated launches, else from its calibration, else from a
    single repeated launch that differs by more than is assumed."""
    repeated: dict[str | None, dict[tuple[CellKey, int, str], list[Launch]]] = {}
    machines: dict[str | None, Machine] = {}
    for key, group in by_cell.items():
        machines.setdefault(key[1], group[0].machine)
        attempts = repeated.setdefault(key[1], {})
        for result in group:
            if KINDS[result.outcome.kind].measured and not result.attempt.short:
                sources = str(sorted((result.sources or {}).items()))  # a change of the code is no variation
                attempts.setdefault((key, result.attempt.batch_per_rank, sources), []).append(launch_in(result))
    variations = {}
    for name, attempts in repeated.items():
        own = variation_of(attempts.values(), "repeated launches of this run")
        calibrated = [learnt for learnt in calibrations if not learnt.machine.unlike(machines[name])]
        if own:
            variations[name] = own
        elif calibrated:
            learnt = calibrated[-1]
            source = f"`bench calibrate` on {learnt.measured_at[:10]}"
            variations[name] = LaunchVariation(sd=learnt.sd, degrees=learnt.degrees, source=source)
        elif pair := more_than_assumed(attempts.values(), ONE_PAIR):
            variations[name] = pair
    return variations


def row_of(
    result: Result,
    settings: dict[str, JsonValue] | None = None,
    row_id: RowId | None = None,
    variation: LaunchVariation | None = None,
    newest: Newest | None = None,
) -> Row:
    """The row of one result.

    Args:
        settings: those of its cell; saves computing them again.
        row_id: its name in a summary; by default, that of the only such attempt.
        variation: between launches on its machine, if known.
        newest: the sources to compare its own with; by default, with none.
    """
    attempt, outcome = result.attempt, result.outcome
    return Row(
        id=row_id or RowId((attempt.cell.id,), attempt.batch_per_rank, attempt.short),
        settings=settings or settings_of(result),
        batch_per_rank=attempt.batch_per_rank,
        batch_global=round(outcome.samples_per_step(attempt)) if isinstance(outcome, Ok) else attempt.batch_global,
        global_batch=attempt.cell.train.global_batch,
        world_size=attempt.cell.num_processes,
        outcome=outcome.kind,
        reason=_reason(result),
        fault=outcome.fault if isinstance(outcome, Failed) else None,
        measured=measured(result, variation),
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
    key: CellKey, results: Sequence[Result], named: Sequence[str], newest: Newest, variation: LaunchVariation | None
) -> CellRows:
    cell_id, machine, _ = key
    # Where a batch was measured in full, its short attempt has nothing to add.
    full = {result.attempt.batch_per_rank for result in results if not result.attempt.short}
    shown = [result for result in results if not (result.attempt.short and result.attempt.batch_per_rank in full)]
    first = results[0]
    on_machine: dict[str, JsonValue] = {} if machine in (None, UNKNOWN) else {"machine": machine}

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
        alike = list(result.axes.items()) == list(first.axes.items()) and result.stated == first.stated
        of_row = shared if alike else settings(result)
        launches.setdefault(row_id, []).append(row_of(result, of_row, row_id, variation, newest))
    rows = [merged(group) for group in launches.values()]
    rows.sort(key=lambda row: row.batch_per_rank)
    knows_most = max(results, key=lambda result: (isinstance(result.outcome, Ok), len(result.stated or ())))
    return CellRows(
        cell=first.attempt.cell,
        controlled=controlled_of(knows_most),
        rows=tuple(rows),
        launched=tuple(result for result in results if result.isolation is not None),
        thrashing=_thrashing(rows),
    )


def _thrashing(rows: Sequence[Row]) -> frozenset[int]:
    return thrashing_batches(
        Fit(
            batch=row.batch_per_rank,
            rate=measured.samples_per_s_global,
            # An allocator that keeps no blocks cannot thrash.
            at_ceiling=measured.of(PEAK_RESERVED) is not None and (measured.of(CAPACITY_SHARE) or 0) >= CEILING,
            retried=(measured.of(ALLOC_RETRIES) or 0) > 0,
        )
        for row in rows
        if (measured := row.measured)
    )


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


def newest_sources(results: Sequence[Result], last: Mapping[str, LastCommand] | None = None) -> Newest:
    """The newest sources of each workload: of its newest result, or of a later command that kept all its results.
    Results that do not know theirs count for nothing.

    Args:
        last: the last command of each run, by the run's name.
    """
    known = [(result.started_at, _workload(result), result.sources) for result in results if result.sources is not None]
    known += [
        (command.at, (command.workload, command.script, run), command.sources)
        for name, command in (last or {}).items()
        for run in ("", name)
    ]
    return {workload: sources for _, workload, sources in sorted(known, key=lambda found: found[0])}


def stale_files(result: Result, newest: Newest) -> tuple[str, ...]:
    """The source files in which ``result`` differs from the newest; none where its sources are not known."""
    return differing(result.sources, newest.get(_workload(result), {})) if result.sources is not None else ()


def _workload(result: Result) -> Workload:
    """The name of a script is that of its file: two folders may have one train.py each."""
    cell = result.attempt.cell
    return cell.workload, cell.script.command if cell.script else (), str(result.axes.get(RUN, ""))


def _distinct(items: Iterable[Item]) -> list[Item]:
    seen: list[Item] = []
    for item in items:
        if item not in seen:
            seen.append(item)
    return seen
