"""All arithmetic of the report: from the raw samples of results to rows. Pure: no disk, no clock, no torch."""

import json
import statistics
from collections.abc import Iterable, Sequence
from typing import TypeVar

from pydantic import JsonValue

from bench.outcome import PHASES, Failed, Ok, Oom, Outcome, RankOk, Reported, Result
from bench.report.contract import contract_of, machine_names, same
from bench.report.intervals import mean_interval
from bench.report.rows import CellRows, Measured, Phases, Rank, Row, Sampled, Summary, Times
from bench.search.throughput import CEILING, CLEARLY

Item = TypeVar("Item")
Number = TypeVar("Number", int, float)


def summarize(results: Sequence[Result]) -> Summary:
    """The summary of ``results``, which may come in any order. A cell on two unlike machines is two."""
    machines = tuple(_distinct(result.machine for result in results))
    names = machine_names(machines)
    by_cell: dict[tuple[str, str | None], list[Result]] = {}
    for result in results:
        name = names[machines.index(result.machine)]
        by_cell.setdefault((result.attempt.cell.id, name), []).append(result)
    named = tuple(dict.fromkeys(name for result in results for name in result.axes))
    cells = tuple(_cell_rows(cell_id, group, named, name) for (cell_id, name), group in by_cell.items())
    columns = _differing([cell.rows[0].settings for cell in cells])
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
    )


def row_of(result: Result, settings: dict[str, JsonValue] | None = None) -> Row:
    """The row of one result.

    Args:
        settings: those of its cell, where they are known already.
    """
    attempt, outcome = result.attempt, result.outcome
    return Row(
        settings=settings or settings_of(result),
        batch_per_rank=attempt.batch_per_rank,
        batch_global=attempt.batch_per_rank * attempt.cell.num_processes,
        world_size=attempt.cell.num_processes,
        outcome=outcome.kind,
        reason=_reason(result),
        fault=outcome.fault if isinstance(outcome, Failed) else None,
        measured=_measured(outcome, attempt.batch_per_rank, attempt.cell.num_processes),
        short=attempt.short,
        n_steps=attempt.measure.steps,
        retried=result.retried,
        conditions=result.conditions,
    )


def _cell_rows(cell_id: str, results: Sequence[Result], named: Sequence[str], machine: str | None) -> CellRows:
    # Where a batch was measured in full, its short attempt has nothing to add.
    full = {result.attempt.batch_per_rank for result in results if not result.attempt.short}
    told = [result for result in results if not (result.attempt.short and result.attempt.batch_per_rank in full)]
    first = results[0]
    here: dict[str, JsonValue] = {} if machine is None else {"machine": machine}

    def settings(result: Result) -> dict[str, JsonValue]:
        return {**settings_of(result, named, cell_id), **here}

    shared = settings(first)
    # Axes may be named in another order in another run, and imported rows may state unlike fields.
    rows = sorted(
        (row_of(result, shared if _named_alike(result, first) else settings(result)) for result in told),
        key=lambda row: row.batch_per_rank,
    )
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


def _thrashing(rows: Sequence[Row]) -> frozenset[int]:
    """Batches at the ceiling whose throughput falls behind a smaller one's, or whose allocator had to ask anew."""
    found, fastest = set(), 0.0
    for row in rows:
        if row.measured is None:
            continue
        rate, held = row.measured.samples_per_s_global, row.measured.capacity_share_rank_max
        at_ceiling = row.measured.peak_reserved_bytes_rank_max is not None and (held or 0) >= CEILING
        retried = isinstance(row.measured, Sampled) and row.measured.alloc_retries > 0
        if retried or (at_ceiling and rate < (1 - CLEARLY) * fastest):
            found.add(row.batch_per_rank)
        fastest = max(fastest, rate)
    return frozenset(found)


def _named_alike(one: Result, other: Result) -> bool:
    return list(one.axes) == list(other.axes) and one.axes == other.axes and one.stated == other.stated


def settings_of(result: Result, named: Sequence[str] = (), cell_id: str | None = None) -> dict[str, JsonValue]:
    """Named values of a cell. The axes give the order; what the cell resolved them to gives the value.

    Args:
        named: axes of other results; a plain option of this one is a setting by that name too.
        cell_id: where it is known already.
    """
    cell, options = result.attempt.cell, result.attempt.cell.options
    preset = {"preset": cell.options["preset"]} if "preset" in cell.options else {}
    settings = {
        "backend": cell.backend,
        **{name: value for name, value in result.axes.items() if name not in ("backend", "batch")},
        **{name: options[name] for name in named if name in options and name not in result.axes},
        "workload": cell.workload,
        **preset,
        "num_processes": cell.num_processes,
        "mixed_precision": cell.mixed_precision,
        "memory_limit_bytes": cell.memory_limit_bytes,
        **cell.train.model_dump(mode="json"),
        **cell.measure.model_dump(mode="json"),
        "cell": cell_id or cell.id,
    }
    return result.known(settings)


def _differing(settings: Sequence[dict[str, JsonValue]]) -> tuple[str, ...]:
    """Names whose values differ, and the cell's id when these do not tell the cells apart."""
    names = [name for name in dict.fromkeys(name for one in settings for name in one) if name != "cell"]
    columns = [name for name in names if name == "backend" or _varies(settings, name)]
    told_apart = len({_key(one, columns) for one in settings}) == len(settings)
    return tuple(columns if told_apart else [*columns, "cell"])


def _varies(settings: Sequence[dict[str, JsonValue]], name: str) -> bool:
    """A missing value is not the same as null."""
    first = settings[0]
    return any((name in one) != (name in first) or not same(one.get(name), first.get(name)) for one in settings)


def _key(settings: dict[str, JsonValue], names: Sequence[str]) -> str:
    return json.dumps([[settings[name]] if name in settings else [] for name in names], sort_keys=True)


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
    return reason if result.retried is None else f"second try, {reason} (the first: {result.retried})"


def _measured(outcome: Outcome, batch_per_rank: int, world_size: int) -> Measured | None:
    match outcome:
        case Ok():
            return _measure(outcome, batch_per_rank)
        case Reported():
            return _read_off(outcome, batch_per_rank * world_size)
    return None


def _read_off(outcome: Reported, batch_global: int) -> Measured | None:
    """Imported figures; what they lack stays None."""
    step_s = max(outcome.step_time_s_per_rank, default=None)
    # A published throughput is often rounded more than the step time that it comes from.
    samples_per_s = outcome.samples_per_s_global if step_s is None else batch_global / step_s
    if samples_per_s is None:
        return None
    held, capacity = outcome.peak_reserved_bytes or outcome.peak_allocated_bytes, outcome.capacity_bytes
    means = {name: Times(mean_s=mean_s) for name, mean_s in outcome.phase_times_s.items()}
    return Measured(
        samples_per_s_global=samples_per_s,
        step_time_s_per_rank=outcome.step_time_s_per_rank,
        peak_allocated_bytes_rank_max=outcome.peak_allocated_bytes,
        peak_reserved_bytes_rank_max=outcome.peak_reserved_bytes,
        capacity_share_rank_max=outcome.capacity_share or (held / capacity if held and capacity else None),
        phases=Phases(
            rank=None,
            parts={name: means[name] for name in PHASES if name in means},
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
            sharded_share=rank.regime.sharded_parameters / rank.regime.parameters,
            unaccounted_share=_unaccounted_share(rank),
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
        interval=_throughput_interval(outcome.ranks[slowest.rank].step_times_s, batch_global),
        peak_allocated_bytes_rank_max=_worst([memory.peak_allocated_bytes for memory in memories]),
        peak_reserved_bytes_rank_max=_worst([memory.peak_reserved_bytes for memory in memories]),
        peak_rss_bytes_rank_max=_worst([memory.peak_rss_bytes for memory in memories]),
        capacity_share_rank_max=_worst(
            [None if memory.held_bytes is None else memory.held_bytes / memory.capacity_bytes for memory in memories]
        ),
        alloc_retries=sum(memory.alloc_retries for memory in memories),
        phases=_phases(outcome.ranks),
        losses=(*outcome.ranks[0].warmup_losses, *outcome.ranks[0].losses),
    )


def _throughput_interval(samples_s: Sequence[float], batch_global: int) -> tuple[float, float] | None:
    """Samples/s at the ends of the mean step's interval."""
    found = mean_interval(samples_s)
    return None if found is None or found[0] <= 0 else (batch_global / found[1], batch_global / found[0])


def _phases(ranks: Sequence[RankOk]) -> Phases | None:
    if not all(rank.phase_times_s.get("total") for rank in ranks):
        return None
    slowest = max(ranks, key=lambda rank: statistics.fmean(rank.phase_times_s["total"]))
    samples = slowest.phase_times_s
    return Phases(
        rank=slowest.rank,
        parts={name: times(samples[name]) for name in PHASES},
        total=times(samples["total"]),
        backward_step=times(samples["backward_step"]),
    )


def _unaccounted_share(rank: RankOk) -> float | None:
    if not (total := sum(rank.phase_times_s.get("total", ()))):
        return None
    return 1 - sum(sum(rank.phase_times_s[name]) for name in PHASES) / total


def times(samples: Sequence[float]) -> Times:
    """Statistics of raw samples."""
    return Times(mean_s=statistics.fmean(samples), samples_s=samples)


def _worst(values: Sequence[Number | None]) -> Number | None:
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None


def _distinct(items: Iterable[Item]) -> list[Item]:
    found: list[Item] = []
    for item in items:
        if item not in found:
            found.append(item)
    return found
