"""How wide the intervals of a run's comparisons are, for `bench run --until`. Pure."""

import math
from collections import Counter
from collections.abc import Sequence

from pydantic import JsonValue

from bench.records.cell import Attempt
from bench.records.leaves import same
from bench.records.outcome import KINDS, Result
from bench.records.until import Width
from bench.report.speedup import SpeedUp, compare_axis
from bench.report.summary import summarize

FEWEST_LAUNCHES = 3
"""With fewer of one side, a comparison is not known well enough, however narrow it looks."""


def widths(results: Sequence[Result], axes: Sequence[str]) -> list[Width]:
    """The comparisons along ``axes``, at best and at matched batches, each pair of attempts once."""
    summary = summarize(results)
    attempts = {
        row.id: Attempt(cell=cell.cell, batch_per_rank=row.batch_per_rank)
        for cell in summary.cells
        for row in cell.rows
        if not row.short
    }
    launches = Counter(_first(result.attempt) for result in results if KINDS[result.outcome.kind].measured)
    found: dict[tuple[str, str], Width] = {}
    for axis in axes:
        for pair in compare_axis(summary, axis).speed_ups:
            of, against = attempts[pair.row.id], attempts[pair.reference.id]
            known = min(launches[_first(of)], launches[_first(against)]) >= FEWEST_LAUNCHES
            found.setdefault((of.slug, against.slug), Width(of, against, _half_width(pair) if known else None))
    return list(found.values())


def compared_axes(results: Sequence[Result]) -> list[str]:
    """What a reader compares: backends, or if there is only one, every axis with several values."""
    axes: dict[str, list[JsonValue]] = {}
    for result in results:
        for name, value in result.axes.items():
            values = axes.setdefault(name, [])
            if not any(same(value, other) for other in values):
                values.append(value)
    varied = [name for name, values in axes.items() if len(values) > 1]
    return ["backend"] if "backend" in varied else varied


def _half_width(pair: SpeedUp) -> float | None:
    """Of the logarithm of the ratio."""
    interval = pair.ratio.interval
    return None if interval is None else math.log(interval[1] / interval[0]) / 2


def _first(attempt: Attempt) -> str:
    return attempt.model_copy(update={"launch": 1}).slug
