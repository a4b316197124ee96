"""The launches of one cell at one batch as one row. Pure."""

import statistics
from collections.abc import Sequence
from dataclasses import replace

from bench.records.figures import FIGURES
from bench.report.rows import Measured, Row, Sampled, Times
from bench.statistics.intervals import Interval
from bench.statistics.launches import launch_of, mean_reach, mean_step_s
from bench.units import counted


def merged(launches: Sequence[Row]) -> Row:
    """One row for all launches of an attempt. A launch that measured nothing is named in the reason.

    What no mean of launches can say, such as phases and losses, is that of the launch with the median step.
    """
    if len(launches) == 1:
        return launches[0]
    launches = [_of_source(row) for row in launches]
    measured = [(row.measured, row) for row in launches if row.measured and row.measured.launches]
    if not measured:
        return replace(launches[0], launches=tuple(launches))
    ranked = sorted(measured, key=lambda pair: mean_step_s(pair[0].launches))
    middle, row = ranked[(len(ranked) - 1) // 2]
    return replace(
        row,
        id=launches[0].id,
        reason=_failures([launch for launch in launches if not launch.measured], len(launches)),
        measured=_figures([figures for figures, _ in measured], middle),
        stale=tuple(sorted({file for launch in launches for file in launch.stale})),
        launches=tuple(launches),
    )


def _of_source(row: Row) -> Row:
    """A row of imported figures that its source repeats: each of them is a launch."""
    if row.measured is None or row.measured.source is None:
        return row
    launch = launch_of((row.batch_global / row.rate,), row.launch)
    return replace(row, measured=replace(row.measured, launches=(launch,)))


def _failures(failed: Sequence[Row], n_launches: int) -> str | None:
    """``4 of 5 launches; 1 failed: ...``"""
    if not failed:
        return None
    kinds = dict.fromkeys(row.outcome for row in failed)
    counts = ", ".join(f"{sum(row.outcome == kind for row in failed)} {kind}" for kind in kinds)
    why = f": {failed[0].reason}" if failed[0].reason else ""
    return f"{n_launches - len(failed)} of {counted(n_launches, 'launch')}; {counts}{why}"


def _figures(each: Sequence[Measured], middle: Measured) -> Measured:
    """The throughput of the mean step of all launches, and the largest peaks."""
    launches = tuple(launch for figures in each for launch in figures.launches)
    step_s = mean_step_s(launches)
    rate = middle.samples_per_s_global * mean_step_s(middle.launches) / step_s
    times = [figures.step_time_s_per_rank for figures in each]  # a script may state them in one launch alone
    merged = replace(
        middle,
        launches=launches,
        samples_per_s_global=rate,
        interval=throughput_interval(rate, replace(middle, launches=launches)),
        step_time_s_per_rank=tuple(map(statistics.fmean, zip(*times, strict=True)))
        if len(set(map(len, times))) == 1
        else (),
        figures={one.name: one.combined([figures.of(one) for figures in each]) for one in FIGURES},
    )
    sampled = [figures for figures in each if isinstance(figures, Sampled)]
    if not isinstance(merged, Sampled):
        return merged
    samples_s = tuple(sample for figures in sampled for sample in figures.slowest.step.samples_s)
    return replace(
        merged,
        slowest=replace(merged.slowest, step=Times(mean_s=step_s, samples_s=samples_s)),
    )


def throughput_interval(rate: float, figures: Measured) -> Interval:
    """Where the throughput lies with 95 % confidence, by the variation between launches."""
    return mean_reach(figures.launches, figures.scatter).interval(rate)
