"""The rows for other programs: one flat record a result, with units and scope in every name. Pure."""

import json

from pydantic import JsonValue

from bench.errors import one_line
from bench.records.figures import FIGURES
from bench.report.rows import CellRows, Row, Sampled, Summary

Record = dict[str, JsonValue]


def records(summary: Summary) -> list[Record]:
    """One record a result, in the order of the report."""
    return [_record(cell, row) for cell in summary.cells for row in cell.rows]


def _record(cell: CellRows, row: Row) -> Record:
    measured = row.measured
    sampled = measured if isinstance(measured, Sampled) else None
    step = sampled.slowest.step if sampled else None
    interval = measured.interval if measured else None
    phases = measured.phases if measured else None
    figures: Record = {
        "batch": row.batch_per_rank,
        "batch_global": row.batch_global,
        "device": row.device,
        "outcome": row.outcome,
        "fault": row.fault,
        "retried": _text(row.retried),
        "short": row.short,
        "launches": sum(launch.measured is not None for launch in row.each),
        "launches_failed": len(row.failures),
        "stale": bool(row.stale),
        "thrashing": cell.thrashes(row),
        "invalid": row.id in cell.invalid,
        "samples_per_s_global": measured.samples_per_s_global if measured else None,
        "samples_per_s_global_low": interval[0] if interval else None,
        "samples_per_s_global_high": interval[1] if interval else None,
        "step_time_s_rank_max": measured.step_time_s_rank_max if measured else None,
        "step_time_s_median": step.median_s if step else None,
        "step_time_s_p95": step.p95_s if step else None,
        "slowest_rank": sampled.slowest.raw.rank if sampled else None,
        "straggler_spread": measured.straggler_spread if measured else None,
        **{figure.name: measured.of(figure) if measured else None for figure in FIGURES if figure.exported},
        **({f"{name}_s_mean": times.mean_s for name, times in phases.parts.items()} if phases else {}),
        "total_s_mean": measured.total_s if measured else None,
        "loss_first": sampled.losses[0] if sampled else None,
        "loss_last": sampled.losses[-1] if sampled else None,
        "source": _text(measured.source) if measured else None,
        "reason": _text(row.reason),
        **({"notes": json.dumps(row.notes, ensure_ascii=False)} if row.notes else {}),
    }
    settings = {
        _free(one_line(name), figures): json.dumps(value) if isinstance(value, list | dict) else _text(value)
        for name, value in row.settings.items()
        if name != "cell"
    }
    return {"cell": cell.cell.id, **settings, **figures}


def _free(name: str, figures: Record) -> str:
    """A script may have an axis with the name of a figure."""
    return f"setting_{name}" if name in figures else name


def _text(value: JsonValue) -> JsonValue:
    """On one line without control characters: a terminal that shows a CSV file would obey them."""
    return one_line(value) if isinstance(value, str) else value
