"""All arithmetic of the report: from the raw samples of results to rows. Pure: no disk, no clock, no torch."""

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import TypeVar

from pydantic import JsonValue

from bench.outcome import PHASES, Failed, Ok, Oom, Outcome, RankOk, Result
from bench.report.rows import CellRows, Measured, Phases, Rank, Row, Summary, Times

Item = TypeVar("Item")
Number = TypeVar("Number", int, float)


def summarize(results: Sequence[Result]) -> Summary:
    """The summary of ``results``, which may come in any order."""
    by_cell: dict[str, list[Result]] = {}
    for result in results:
        by_cell.setdefault(result.attempt.cell.id, []).append(result)
    cells = tuple(_cell_rows(group) for group in by_cell.values())
    columns = _differing([cell.rows[0].settings for cell in cells])
    shared = cells[0].rows[0].settings if cells else {}
    return Summary(
        cells=cells,
        columns=columns,
        shared={name: value for name, value in shared.items() if name not in (*columns, "cell")},
        machines=tuple(_distinct(result.machine for result in results)),
        isolations=tuple(_distinct(result.isolation for result in results if result.isolation is not None)),
        started_at=min((result.started_at for result in results), default=None),
        wall_s=sum(result.wall_s for result in results),
    )


def row_of(result: Result) -> Row:
    """The row of one result."""
    attempt, outcome = result.attempt, result.outcome
    return Row(
        settings=_settings(result),
        batch_per_rank=attempt.batch_per_rank,
        batch_global=attempt.batch_per_rank * attempt.cell.num_processes,
        world_size=attempt.cell.num_processes,
        outcome=outcome.kind,
        reason=_reason(outcome),
        measured=_measure(outcome, attempt.batch_per_rank) if isinstance(outcome, Ok) else None,
        short=attempt.short,
        slug=attempt.slug,
    )


def _cell_rows(results: Sequence[Result]) -> CellRows:
    # Where a batch was measured in full, its short attempt has nothing to add.
    full = {result.attempt.batch_per_rank for result in results if not result.attempt.short}
    told = [result for result in results if not (result.attempt.short and result.attempt.batch_per_rank in full)]
    rows = sorted((row_of(result) for result in told), key=lambda row: row.batch_per_rank)
    measured = [(row.measured.samples_per_s_global, row) for row in rows if row.measured and not row.short]
    best = max(measured, key=lambda pair: pair[0])[1] if measured else None
    return CellRows(cell=results[0].attempt.cell, rows=tuple(rows), best=best)


def _settings(result: Result) -> dict[str, JsonValue]:
    """Named values of a cell. The axes give the order; what the cell resolved them to gives the value."""
    cell = result.attempt.cell
    preset = {"preset": cell.options["preset"]} if "preset" in cell.options else {}
    return {
        "backend": cell.backend,
        **{name: value for name, value in result.axes.items() if name not in ("backend", "batch")},
        "workload": cell.workload,
        **preset,
        "num_processes": cell.num_processes,
        "mixed_precision": cell.mixed_precision,
        "memory_limit_bytes": cell.memory_limit_bytes,
        **cell.train.model_dump(mode="json"),
        **cell.measure.model_dump(mode="json"),
        "cell": cell.id,
    }


def _differing(settings: Sequence[dict[str, JsonValue]]) -> tuple[str, ...]:
    """Names whose values differ, and the cell's id when these do not tell the cells apart."""
    names = [name for name in _distinct(name for one in settings for name in one) if name != "cell"]
    columns = [name for name in names if name == "backend" or len({_key(one, [name]) for one in settings}) > 1]
    told_apart = len({_key(one, columns) for one in settings}) == len(settings)
    return tuple(columns if told_apart else [*columns, "cell"])


def _key(settings: dict[str, JsonValue], names: Sequence[str]) -> str:
    """Compares values as JSON: in Python ``1 == True``, and a missing one would equal null."""
    return json.dumps([[settings[name]] if name in settings else [] for name in names], sort_keys=True)


def _reason(outcome: Outcome) -> str | None:
    match outcome:
        case Ok():
            return None
        case Oom(phase=str()) | Failed(phase=str()):
            return f"rank {outcome.rank} in {outcome.phase}: {outcome.reason}"
    return outcome.reason


def _measure(outcome: Ok, batch_per_rank: int) -> Measured:
    ranks = tuple(
        Rank(
            rank=rank.rank,
            step=_times(rank.step_times_s),
            memory=rank.memory,
            regime=rank.regime,
            sharded_share=rank.regime.sharded_parameters / rank.regime.parameters,
            unaccounted_share=_unaccounted_share(rank),
        )
        for rank in outcome.ranks
    )
    memories = [rank.memory for rank in ranks]
    slowest = max(ranks, key=lambda rank: rank.step.mean_s)
    losses = outcome.ranks[0].losses
    return Measured(
        ranks=ranks,
        slowest=slowest,
        samples_per_s_global=batch_per_rank * len(ranks) / slowest.step.mean_s,
        peak_allocated_bytes_rank_max=_worst([memory.peak_allocated_bytes for memory in memories]),
        peak_reserved_bytes_rank_max=_worst([memory.peak_reserved_bytes for memory in memories]),
        peak_rss_bytes_rank_max=_worst([memory.peak_rss_bytes for memory in memories]),
        capacity_share_rank_max=_worst(
            [None if memory.held_bytes is None else memory.held_bytes / memory.capacity_bytes for memory in memories]
        ),
        phases=_phases(outcome.ranks),
        loss_first=next(iter(outcome.ranks[0].warmup_losses or losses), None),
        loss_last=losses[-1] if losses else None,
        finite=all(math.isfinite(loss) for rank in outcome.ranks for loss in rank.losses),
    )


def _phases(ranks: Sequence[RankOk]) -> Phases | None:
    if not all(rank.phase_times_s.get("total") for rank in ranks):
        return None
    slowest = max(ranks, key=lambda rank: statistics.fmean(rank.phase_times_s["total"]))
    samples = slowest.phase_times_s
    return Phases(
        rank=slowest.rank,
        parts={name: _times(samples[name]) for name in PHASES},
        total=_times(samples["total"]),
        backward_step=_times(samples["backward_step"]),
    )


def _unaccounted_share(rank: RankOk) -> float | None:
    if not (total := sum(rank.phase_times_s.get("total", ()))):
        return None
    return 1 - sum(sum(rank.phase_times_s[name]) for name in PHASES) / total


def _times(samples: Sequence[float]) -> Times:
    return Times(
        mean_s=statistics.fmean(samples),
        median_s=statistics.median(samples),
        p95_s=sorted(samples)[int(0.95 * (len(samples) - 1))],
    )


def _worst(values: Sequence[Number | None]) -> Number | None:
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None


def _distinct(items: Iterable[Item]) -> list[Item]:
    found: list[Item] = []
    for item in items:
        if item not in found:
            found.append(item)
    return found
