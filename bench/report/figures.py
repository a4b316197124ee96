"""The figures of one result, from the raw samples of its ranks or from what a source states. Pure."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from bench.records.base import Device
from bench.records.cell import Attempt
from bench.records.figures import CAPACITY, CAPACITY_SHARE, FIGURES
from bench.records.outcome import Ok, Reported, Result, Scripted, Stated
from bench.records.phases import PHASE_NAMES
from bench.records.rank_outcome import RankOk
from bench.report.gate import gate
from bench.report.launches import throughput_interval
from bench.report.rows import Measured, Phases, Rank, Sampled, Times
from bench.statistics.launches import Launch, Scatter, launch_of


def launch_in(result: Result) -> Launch:
    """What a measured result says of its launch."""
    if isinstance(result.outcome, Scripted):
        return launch_of((_step_s(result.outcome, result.attempt),), result.attempt.launch)
    assert isinstance(result.outcome, Ok)
    slowest = max((rank.step_times_s for rank in result.outcome.ranks), key=statistics.fmean)
    return launch_of(slowest, result.attempt.launch)


def measured(result: Result, scatter: Scatter | None) -> Measured | None:
    """The figures of a result; None if nothing was measured."""
    attempt = result.attempt
    match result.outcome:
        case Ok() as outcome:
            return _from_launch(_measure(outcome, attempt.batch_per_rank), result, scatter)
        case Reported() as outcome:
            stated = _stated(outcome, attempt, result.machine.hardware.device)
            return stated and replace(stated, source=outcome.source)
        case Scripted() as outcome:
            stated = _stated(outcome, attempt, result.machine.hardware.device)
            return stated and _from_launch(stated, result, scatter)
    return None


def _from_launch(figures: Measured, result: Result, scatter: Scatter | None) -> Measured:
    known = replace(figures, launches=(launch_in(result),), scatter=scatter)
    return replace(known, interval=throughput_interval(known.samples_per_s_global, known))


def _step_s(outcome: Stated, attempt: Attempt) -> float:
    """The mean step that a script states, or that follows from its throughput."""
    rate = outcome.samples_per_s_global or math.inf
    return max(outcome.step_time_s_per_rank, default=0.0) or attempt.batch_global / rate


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
            backward_step=means.get("backward_step"),
        )
        if means
        else None,
    )


def _measure(outcome: Ok, batch_per_rank: int) -> Sampled:
    ranks = tuple(Rank(raw=rank, step=times(rank.step_times_s)) for rank in outcome.ranks)
    slowest = max(ranks, key=lambda rank: rank.step.mean_s)
    batch_global = batch_per_rank * len(ranks)
    return Sampled(
        ranks=ranks,
        slowest=slowest,
        samples_per_s_global=batch_global / slowest.step.mean_s,
        step_time_s_per_rank=tuple(rank.step.mean_s for rank in ranks),
        figures={one.name: one.combined(list(map(one.of_rank, outcome.ranks))) for one in FIGURES if one.of_rank},
        phases=_phases(outcome.ranks),
        gate=gate(outcome.ranks),
        losses=(*outcome.ranks[0].warmup_losses, *outcome.ranks[0].losses),
    )


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


def times(samples: Sequence[float]) -> Times:
    """Statistics of raw samples."""
    return Times(mean_s=statistics.fmean(samples), samples_s=samples)
