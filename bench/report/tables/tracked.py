"""Results as runs of an experiment tracker: settings, figures and the series of steps. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from bench.report.naming import row_name
from bench.report.rows import Row, Sampled, Summary
from bench.report.tables.export import records


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
    rows = [row for cell in summary.cells for row in cell.rows]
    return [_tracked(summary, row, record) for row, record in zip(rows, records(summary), strict=True)]


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
    sampled = next((launch.measured for launch in row.each if isinstance(launch.measured, Sampled)), None)
    if sampled is None:
        return []
    steps = [{"loss": loss} for loss in sampled.losses]
    warmup = row.settings.get("warmup_steps")
    measured = steps[warmup if isinstance(warmup, int) else 0 :]
    for step, step_time_s in zip(measured, sampled.slowest.step.samples_s, strict=False):
        step["step_time_s"] = step_time_s
    return steps
