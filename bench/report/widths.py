"""How wide the intervals of a run's comparisons are, for `bench run --until` and `measure.launches: auto`. Pure."""

import math
from collections import Counter
from collections.abc import Sequence

from pydantic import JsonValue

from bench.records.calibration import Calibration
from bench.records.cell import Attempt
from bench.records.json_diff import same
from bench.records.outcome import KINDS, Result
from bench.records.until import Width
from bench.records.verdict import Probe
from bench.report.advice import advise
from bench.report.rows import RowId, Summary
from bench.report.speedup import SpeedUp, compare_axis
from bench.report.summary import summarize

FEWEST_LAUNCHES = 3
"""With fewer of one side, a comparison is not known well enough, however narrow it looks."""


def widths(results: Sequence[Result], axes: Sequence[str]) -> list[Width]:
    """The comparisons along ``axes``, at best and at matched batches, each pair of attempts once."""
    summary = summarize(results)
    return _widths(summary, results, [pair for axis in axes for pair in compare_axis(summary, axis).speed_ups])


def leading_pairs(
    results: Sequence[Result],
    probes: Sequence[Probe],
    calibrations: Sequence[Calibration],
    choices: frozenset[str],
) -> list[list[tuple[Attempt, Attempt]]]:
    """What the advice on each task rests on: the recommended attempt with the fastest of another cell, and with every
    other one that is not decided: too close to call, or doubted, as where other work slowed it down. By the first
    launches alone: further ones must not choose what they decide.

    In 4000 simulated runs on eight settings, of which other work slowed down 30 % of launches, the row that led in the
    end was the fastest setting in 51 %; in 46 %, where what is doubted was not launched again.
    """
    first = summarize([result for result in results if result.attempt.launch == 1], calibrations)
    attempts = _attempts(first)
    found = []
    for advice in advise(first, probes, choices=choices, beside=compare_axis(first).pairs):
        next_cell = [pair for pair in advice.rivals if pair.row.id.cell != pair.reference.id.cell][:1]
        others = [pair for pair in advice.rivals if not pair.ratio.decided and pair not in next_cell]
        found.append([(attempts[pair.row.id], attempts[pair.reference.id]) for pair in (*next_cell, *others)])
    return found


def widths_of(results: Sequence[Result], pairs: Sequence[tuple[Attempt, Attempt]]) -> list[Width]:
    """Of these pairs of attempts."""
    summary = summarize(results)
    attempts = _attempts(summary)
    rows = {attempts[row.id].slug: row for row in summary.rows if row.id in attempts and row.measured}
    both = [(rows.get(of.slug), rows.get(to.slug)) for of, to in pairs]
    found = [SpeedUp(row=row, reference=to, matched=False) for row, to in both if row and to]
    return _widths(summary, results, found)


def spoiled(results: Sequence[Result]) -> frozenset[str]:
    """The slugs of the first launches of rows that are invalid or thrash."""
    summary = summarize(results)
    attempts = _attempts(summary)
    rows = [row for cell in summary.cells for row in cell.rows if row.measured and not cell.is_sound(row)]
    return frozenset(attempts[row.id].slug for row in rows if row.id in attempts)


def _attempts(summary: Summary) -> dict[RowId, Attempt]:
    return {
        row.id: Attempt(cell=cell.cell, batch_per_rank=row.batch_per_rank)
        for cell in summary.cells
        for row in cell.rows
        if not row.short
    }


def _widths(summary: Summary, results: Sequence[Result], pairs: Sequence[SpeedUp]) -> list[Width]:
    attempts = _attempts(summary)
    measured = (result.attempt for result in results if KINDS[result.outcome.kind].measured)
    launches = Counter(attempt.model_copy(update={"launch": 1}).slug for attempt in measured)
    found: dict[tuple[str, str], Width] = {}
    for pair in pairs:
        of, against = attempts[pair.row.id], attempts[pair.reference.id]
        low, high = pair.ratio.interval
        known = min(launches[of.slug], launches[against.slug]) >= FEWEST_LAUNCHES
        found.setdefault((of.slug, against.slug), Width(of, against, math.log(high / low) / 2 if known else None))
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
