"""The figures of one result, from the raw samples of its ranks or from what a source states; and those of all launches
of one cell at one batch as one row. Pure."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter

from bench.records.base import Device
from bench.records.cell import Attempt
from bench.records.figures import CAPACITY, CAPACITY_SHARE, FIGURES
from bench.records.outcome import Ok, Reported, Result, Scripted, Stated
from bench.records.phases import PHASE_NAMES
from bench.report.critical_rank import critical_rank
from bench.report.rows import Measured, Phases, Rank, Row, Sampled, Times, times
from bench.statistics.launches import Launch, LaunchVariation, launch_of, mean_step_s
from bench.units import counted


def launch_in(result: Result) -> Launch:
    """What a measured result says of its launch."""
    outcome, attempt = result.outcome, result.attempt
    if isinstance(outcome, Scripted):  # it states the mean step, or this follows from its throughput
        rate = outcome.samples_per_s_global or math.inf
        step_s = max(outcome.step_time_s_per_rank, default=0.0) or attempt.batch_global / rate
        return launch_of((step_s,), attempt.launch)
    assert isinstance(outcome, Ok)
    return launch_of(max((rank.step_times_s for rank in outcome.ranks), key=statistics.fmean), attempt.launch)


def measured(result: Result, variation: LaunchVariation | None) -> Measured | None:
    """The figures of a result; None if nothing was measured."""
    figures: Measured | None = None
    match result.outcome:
        case Ok() as outcome:
            figures = _measure(outcome, result.attempt)
        case Stated() as outcome:
            figures = _stated(outcome, result.attempt, result.machine.hardware.device)
    if figures is None or figures.source is not None:
        return figures
    return replace(figures, launches=(launch_in(result),), variation=variation)


def _stated(outcome: Stated, attempt: Attempt, device: Device) -> Measured | None:
    """Figures that a file states; what it does not give stays None."""
    step_s, samples_per_s = max(outcome.step_time_s_per_rank, default=None), outcome.samples_per_s_global
    # A published throughput is often rounded more than its step time.
    if step_s and (samples_per_s is None or isinstance(outcome, Reported)):
        samples_per_s = attempt.batch_global / step_s
    if samples_per_s is None:
        return None
    held, capacity, share = outcome.held_bytes(device), outcome.of(CAPACITY), outcome.of(CAPACITY_SHARE)
    means = {name: Times(mean_s=mean_s) for name, mean_s in outcome.phase_times_s.items()}
    return Measured(
        samples_per_s_global=samples_per_s,
        step_time_s_per_rank=outcome.step_time_s_per_rank,
        figures={
            **outcome.figures,
            CAPACITY_SHARE.name: share or (held / capacity if held and capacity else None),
            CAPACITY.name: capacity or (held / share if held and share else None),
        },
        phases=Phases(
            rank=None,
            parts={name: means[name] for name in PHASE_NAMES if name in means},
            total=means.get("total"),
        )
        if means
        else None,
        source=outcome.source if isinstance(outcome, Reported) else None,
    )


def _measure(outcome: Ok, attempt: Attempt) -> Sampled:
    ranks = tuple(Rank(raw=rank, step=times(rank.step_times_s)) for rank in outcome.ranks)
    slowest = max(ranks, key=lambda rank: rank.step.mean_s)
    windows = [(window.total.mean_s, window) for rank in ranks if (window := rank.phases) and window.total]
    phases = max(windows, key=itemgetter(0))[1] if len(windows) == len(ranks) else None
    return Sampled(
        ranks=ranks,
        slowest=slowest,
        windows_s=(slowest.step.mean_s, phases.total.mean_s) if phases and phases.total else None,
        samples_per_s_global=outcome.samples_per_step(attempt) / slowest.step.mean_s,
        step_time_s_per_rank=tuple(rank.step.mean_s for rank in ranks),
        figures={
            figure.name: figure.combined(list(map(figure.of_rank, outcome.ranks)))
            for figure in FIGURES
            if figure.of_rank
        },
        phases=phases,
        critical_rank=critical_rank(outcome.ranks),
        losses=(*outcome.ranks[0].warmup_losses, *outcome.ranks[0].losses),
    )


def merged(launches: Sequence[Row]) -> Row:
    """One row for all launches of an attempt. A launch that measured nothing is named in the reason.

    What no mean of launches can say, such as phases and losses, is that of the launch with the median step.
    """
    if len(launches) == 1:
        return launches[0]
    launches = [_of_source(row) for row in launches]
    known = [(row.measured, row) for row in launches if row.measured and row.measured.launches]
    if not known:
        return replace(launches[0], launches=tuple(launches))
    ranked = sorted(known, key=lambda pair: mean_step_s(pair[0].launches))
    middle, row = ranked[(len(ranked) - 1) // 2]
    return replace(
        row,
        id=launches[0].id,
        reason=_failures([launch for launch in launches if not launch.measured], len(launches)),
        measured=_of_all([figures for figures, _ in known], middle),
        stale=tuple(sorted({file for launch in launches for file in launch.stale})),
        launches=tuple(launches),
    )


def _of_source(row: Row) -> Row:
    """A row of imported figures that its source repeats: each of them is a launch."""
    if row.measured is None or row.source is None:
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


def _of_all(each: Sequence[Measured], middle: Measured) -> Measured:
    """The throughput of the mean step of all launches, and the largest peaks."""
    launches = tuple(launch for figures in each for launch in figures.launches)
    step_s = mean_step_s(launches)
    times = [figures.step_time_s_per_rank for figures in each]  # a script may state them in one launch alone
    merged = replace(
        middle,
        launches=launches,
        samples_per_s_global=middle.samples_per_s_global * mean_step_s(middle.launches) / step_s,
        step_time_s_per_rank=tuple(map(statistics.fmean, zip(*times, strict=True)))
        if len(set(map(len, times))) == 1
        else (),
        figures={figure.name: figure.combined([measured.of(figure) for measured in each]) for figure in FIGURES},
    )
    sampled = [figures for figures in each if isinstance(figures, Sampled)]
    if not isinstance(merged, Sampled):
        return merged
    samples_s = tuple(sample for figures in sampled for sample in figures.slowest.step.samples_s)
    windows = [figures.windows_s for figures in sampled if figures.windows_s]
    return replace(
        merged,
        slowest=replace(merged.slowest, step=Times(mean_s=step_s, samples_s=samples_s)),
        windows_s=(statistics.fmean(own for own, _ in windows), statistics.fmean(timed for _, timed in windows))
        if windows
        else None,
    )
