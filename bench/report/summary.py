"""All arithmetic of the report: from the raw samples of results to rows. Pure: no disk, no clock, no torch."""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from pydantic import JsonValue

from bench.records.base import Device
from bench.records.calibration import Calibration
from bench.records.outcome import Failed, Ok, Oom, Reported, Result
from bench.records.phases import PHASE_NAMES
from bench.records.rank_outcome import RankOk
from bench.report.contract import RUN, contract_of, machine_names
from bench.report.gate import gate
from bench.report.launches import merged, throughput_interval
from bench.report.rows import CellRows, Measured, Phases, Rank, Row, RowId, Sampled, Summary, Times
from bench.report.settings import distinguishing_settings, options_without_axis, settings_of
from bench.report.sources import Newest, newest_sources, stale_files
from bench.statistics.intervals import Interval, mean_interval
from bench.statistics.launches import Launch, Scatter, launch_of, scatter_of
from bench.statistics.thrashing import CEILING, thrashing_batches

CellKey = tuple[str, str | None, str | None]
"""A cell's id; with the machine and the run where these tell two of it apart."""
Item = TypeVar("Item")
Number = TypeVar("Number", int, float)


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
    return Summary(
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


def _scatters(
    by_cell: Mapping[CellKey, Sequence[Result]], calibrations: Sequence[Calibration]
) -> dict[str | None, Scatter]:
    """Between launches, by the name of the machine: from repeated launches, else from its calibration."""
    repeated: dict[str | None, dict[tuple[CellKey, int], list[Launch]]] = {}
    for key, group in by_cell.items():
        for result in group:
            if isinstance(result.outcome, Ok) and not result.attempt.short:
                attempts = repeated.setdefault(key[1], {})
                attempts.setdefault((key, result.attempt.batch_per_rank), []).append(_launch(result))
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


def _launch(result: Result) -> Launch:
    assert isinstance(result.outcome, Ok)
    slowest = max((rank.step_times_s for rank in result.outcome.ranks), key=statistics.fmean)
    return launch_of(slowest, result.attempt.launch)


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
        batch_global=attempt.batch_per_rank * attempt.cell.num_processes,
        world_size=attempt.cell.num_processes,
        outcome=outcome.kind,
        reason=_reason(result),
        fault=outcome.fault if isinstance(outcome, Failed) else None,
        measured=_measured(result, scatter),
        short=attempt.short,
        n_steps=attempt.measure.steps,
        retried=result.retried,
        conditions=result.conditions,
        accelerators=result.machine.accelerators,
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
    thrashing = _thrashing(rows)
    sound = [
        (row.measured.samples_per_s_global, row)
        for row in rows
        if row.measured and not row.short and row.batch_per_rank not in thrashing
    ]
    knows_most = max(results, key=lambda result: (isinstance(result.outcome, Ok), len(result.stated or ())))
    return CellRows(
        cell=first.attempt.cell,
        contract=contract_of(knows_most),
        rows=tuple(rows),
        best=max(sound, key=lambda pair: pair[0])[1] if sound else None,
        thrashing=thrashing,
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
            at_ceiling=measured.peak_reserved_bytes_rank_max is not None
            and (measured.capacity_share_rank_max or 0) >= CEILING,
            retried=isinstance(measured, Sampled) and measured.alloc_retries > 0,
        )
        for row in rows
        if (measured := row.measured)
    )


def _named_alike(one: Result, other: Result) -> bool:
    return list(one.axes) == list(other.axes) and one.axes == other.axes and one.stated == other.stated


def _reason(result: Result) -> str | None:
    outcome = result.outcome
    match outcome:
        case Ok() | Reported():
            return None
        case Oom(phase=str()) | Failed(phase=str()):
            rank = "" if outcome.rank is None else f"rank {outcome.rank} "
            reason = f"{rank}in {outcome.phase}: {outcome.reason}"
        case _:
            reason = outcome.reason
    if isinstance(outcome, Failed) and outcome.fault != "error":
        reason = f"{outcome.fault.replace('_', ' ')}: {reason}"
    return reason if result.retried is None else f"second try, {reason} (first try: {result.retried})"


def _measured(result: Result, scatter: Scatter | None) -> Measured | None:
    attempt = result.attempt
    match result.outcome:
        case Ok() as outcome:
            measured = _measure(outcome, attempt.batch_per_rank)
            if attempt.launch == 1 and scatter is None:
                return measured
            known = replace(measured, launches=(_launch(result),), scatter=scatter)
            return replace(known, interval=throughput_interval(known.samples_per_s_global, known))
        case Reported() as outcome:
            batch_global = attempt.batch_per_rank * attempt.cell.num_processes
            return _imported(outcome, batch_global, result.machine.hardware.device)
    return None


def _imported(outcome: Reported, batch_global: int, device: Device) -> Measured | None:
    """Imported figures; what the source does not give stays None."""
    step_s = max(outcome.step_time_s_per_rank, default=None)
    # A published throughput is often rounded more than its step time.
    samples_per_s = outcome.samples_per_s_global if step_s is None else batch_global / step_s
    if samples_per_s is None:
        return None
    held, capacity, share = outcome.held_bytes(device), outcome.capacity_bytes, outcome.capacity_share
    means = {name: Times(mean_s=mean_s) for name, mean_s in outcome.phase_times_s.items()}
    return Measured(
        samples_per_s_global=samples_per_s,
        step_time_s_per_rank=outcome.step_time_s_per_rank,
        peak_allocated_bytes_rank_max=outcome.peak_allocated_bytes,
        peak_reserved_bytes_rank_max=outcome.peak_reserved_bytes,
        capacity_share_rank_max=share or (held / capacity if held and capacity else None),
        capacity_bytes_rank_min=capacity or (held / share if held and share else None),
        phases=Phases(
            rank=None,
            parts={name: means[name] for name in PHASE_NAMES if name in means},
            total=means.get("total"),
            backward_step=means.get("backward_step"),
        )
        if means
        else None,
        source=outcome.source,
    )


def _measure(outcome: Ok, batch_per_rank: int) -> Sampled:
    ranks = tuple(
        Rank(
            rank=rank.rank,
            step=times(rank.step_times_s),
            memory=rank.memory,
            regime=rank.regime,
            threads=rank.threads,
            sharded_share=rank.regime.sharded_parameters / rank.regime.parameters,
            traffic=rank.traffic,
            unit_parameters=rank.unit_parameters,
            work=rank.work,
            unaccounted_share=_share_left(rank, PHASE_NAMES),
            dataload_share=_share_of(rank, ("dataload_wait",)),
        )
        for rank in outcome.ranks
    )
    memories = [rank.memory for rank in ranks]
    slowest = max(ranks, key=lambda rank: rank.step.mean_s)
    batch_global = batch_per_rank * len(ranks)
    return Sampled(
        ranks=ranks,
        slowest=slowest,
        samples_per_s_global=batch_global / slowest.step.mean_s,
        step_time_s_per_rank=tuple(rank.step.mean_s for rank in ranks),
        launches=(launch_of(slowest.step.samples_s),),
        scatter=None,
        interval=_throughput_interval(slowest.step.samples_s, batch_global),
        peak_allocated_bytes_rank_max=_worst([memory.peak_allocated_bytes for memory in memories]),
        peak_reserved_bytes_rank_max=_worst([memory.peak_reserved_bytes for memory in memories]),
        peak_rss_bytes_rank_max=_worst([memory.peak_rss_bytes for memory in memories]),
        capacity_share_rank_max=_worst(
            [None if memory.held_bytes is None else memory.held_bytes / memory.capacity_bytes for memory in memories]
        ),
        capacity_bytes_rank_min=min(memory.capacity_bytes for memory in memories),
        alloc_retries=sum(memory.alloc_retries for memory in memories),
        phases=_phases(outcome.ranks),
        gate=gate(outcome.ranks),
        losses=(*outcome.ranks[0].warmup_losses, *outcome.ranks[0].losses),
    )


def _throughput_interval(samples_s: Sequence[float], batch_global: int) -> Interval | None:
    """Samples/s at the ends of the mean step's interval."""
    step_s = mean_interval(samples_s)
    return None if step_s is None or step_s[0] <= 0 else (batch_global / step_s[1], batch_global / step_s[0])


def _phases(ranks: Sequence[RankOk]) -> Phases | None:
    if not all(rank.phase_times_s.get("total") for rank in ranks):
        return None
    slowest = max(ranks, key=lambda rank: statistics.fmean(rank.phase_times_s["total"]))
    samples = slowest.phase_times_s
    return Phases(
        rank=slowest.rank,
        parts={name: times(samples[name]) for name in PHASE_NAMES},
        total=times(samples["total"]),
        backward_step=times(samples["backward_step"]),
    )


def _share_of(rank: RankOk, phases: Iterable[str]) -> float | None:
    """Share of the phase window that these phases take."""
    if not (total := sum(rank.phase_times_s.get("total", ()))):
        return None
    return sum(sum(rank.phase_times_s[name]) for name in phases) / total


def _share_left(rank: RankOk, phases: Iterable[str]) -> float | None:
    taken = _share_of(rank, phases)
    return None if taken is None else 1 - taken


def times(samples: Sequence[float]) -> Times:
    """Statistics of raw samples."""
    return Times(mean_s=statistics.fmean(samples), samples_s=samples)


def _worst(values: Sequence[Number | None]) -> Number | None:
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None


def _distinct(items: Iterable[Item]) -> list[Item]:
    seen: list[Item] = []
    for item in items:
        if item not in seen:
            seen.append(item)
    return seen
