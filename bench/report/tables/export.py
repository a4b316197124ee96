"""The rows for other programs: flat records with units and scope in every name, and the runs of a tracker."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from bench.errors import one_line
from bench.records.figures import FIGURES
from bench.records.outcome import INVALID
from bench.report.controlled import ID
from bench.report.naming import MICRO_BATCHES_CAPTION, row_name
from bench.report.rows import CellRows, Row, Summary

Record = dict[str, JsonValue]


def records(summary: Summary) -> list[Record]:
    """One record a result, in the order of the report."""
    return [_record(cell, row) for cell in summary.cells for row in cell.rows]


def _record(cell: CellRows, row: Row) -> Record:
    measured = row.measured
    sampled = row.sampled
    step = sampled.slowest.step if sampled else None
    interval = measured.interval if measured else None
    figures: Record = {
        "batch": row.batch_per_rank,
        "batch_global": row.batch_global,
        **({} if MICRO_BATCHES_CAPTION in row.settings else {MICRO_BATCHES_CAPTION: row.micro_batches}),
        "device": row.device,
        "outcome": INVALID.word if row.id in cell.invalid else row.outcome,
        "fault": row.fault,
        "retried": _text(row.retried),
        "short": row.short,
        "launches": sum(launch.measured is not None for launch in row.each),
        "launches_failed": len(row.failures),
        "stale": bool(row.stale),
        "thrashing": cell.thrashes(row),
        "samples_per_s_global": measured.samples_per_s_global if measured else None,
        "samples_per_s_global_low": interval[0] if interval else None,
        "samples_per_s_global_high": interval[1] if interval else None,
        "step_time_s_rank_max": measured.step_time_s_rank_max if measured else None,
        "step_time_s_median": step.median_s if step else None,
        "step_time_s_p95": step.p95_s if step else None,
        "slowest_rank": sampled.slowest.raw.rank if sampled else None,
        "straggler_spread": measured.straggler_spread if measured else None,
        **{figure.name: measured.of(figure) if measured else None for figure in FIGURES if figure.exported},
        **({f"{name}_s_mean": times.mean_s for name, times in row.phases.parts.items()} if row.phases else {}),
        "total_s_mean": row.phases.total.mean_s if row.phases and row.phases.total else None,
        "loss_first": sampled.losses[0] if sampled and sampled.losses else None,
        "loss_last": sampled.losses[-1] if sampled and sampled.losses else None,
        "source": _text(row.source),
        "reason": _text(row.reason),
        **({"notes": json.dumps(row.notes, ensure_ascii=False)} if row.notes else {}),
    }
    settings = {
        one_line(name): json.dumps(value) if isinstance(value, list | dict) else _text(value)
        for name, value in row.settings.items()
        if name != ID
    }
    # A script may have an axis with the name of a column.
    renamed = {f"setting_{name}" if name in (*figures, "cell") else name: value for name, value in settings.items()}
    return {"cell": cell.cell.id, **renamed, **figures}


def _text(value: JsonValue) -> JsonValue:
    """On one line without control characters: a terminal that shows a CSV file would obey them."""
    return one_line(value) if isinstance(value, str) else value


@dataclass(frozen=True, kw_only=True)
class Tracked:
    """One result. The names are those of csv and json."""

    name: str
    """``ddp, batch 8``."""
    config: Mapping[str, JsonValue]
    """Settings, and words such as the outcome; without unknown values."""
    metrics: Mapping[str, float]
    """Figures in base units."""
    steps: Sequence[Mapping[str, float]]
    """The ``loss`` of each step, warm-up included, and the ``step_time_s`` of each measured one on the slowest rank, of
    the first launch that measured; empty for imported figures."""


def tracked(summary: Summary) -> list[Tracked]:
    """One run of a tracker for each row, in the order of the report."""
    return [_tracked(summary, row, record) for row, record in zip(summary.rows, records(summary), strict=True)]


def _tracked(summary: Summary, row: Row, record: Mapping[str, JsonValue]) -> Tracked:
    names = list(record)
    settings = set(names[: names.index("outcome")])
    metrics = {
        name: float(value)
        for name, value in record.items()
        if name not in settings and isinstance(value, int | float) and not isinstance(value, bool)
    }
    known = {name: value for name, value in record.items() if value is not None and name not in metrics}
    return Tracked(name=row_name(summary, row), config=known, metrics=metrics, steps=_steps(row))


def _steps(row: Row) -> list[dict[str, float]]:
    sampled = next((launch.sampled for launch in row.each if launch.sampled), None)
    if sampled is None:
        return []
    steps = [{"loss": loss} for loss in sampled.losses]
    measured = steps[len(sampled.ranks[0].raw.warmup_losses) :]
    if not steps:  # the losses of a script are not known
        steps = measured = [{} for _ in sampled.slowest.step.samples_s]
    for step, step_time_s in zip(measured, sampled.slowest.step.samples_s, strict=False):
        step["step_time_s"] = step_time_s
    return steps
