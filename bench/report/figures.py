"""The figures of one result, from the raw samples of its ranks or from what a source states. Pure."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from bench.records.base import Device
from bench.records.cell import Attempt
from bench.records.outcome import Ok, Reported, Result, Scripted, Stated
from bench.records.phases import PHASE_NAMES
from bench.records.rank_outcome import RankOk
from bench.report.gate import gate
from bench.report.launches import throughput_interval
from bench.report.rows import Measured, Phases, Rank, Sampled, Times
from bench.statistics.launches import Launch, Scatter, launch_of

Number = TypeVar("Number", int, float)


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
    held, capacity, share = outcome.held_bytes(device), outcome.capacity_bytes, outcome.capacity_share
    means = {name: Times(mean_s=mean_s) for name, mean_s in outcome.phase_times_s.items()}
    return Measured(
        samples_per_s_global=samples_per_s,
        step_time_s_per_rank=outcome.step_time_s_per_rank,
        peak_allocated_bytes_rank_max=outcome.peak_allocated_bytes,
        peak_reserved_bytes_rank_max=outcome.peak_reserved_bytes,
        capacity_share_rank_max=share or (held / capacity if held and capacity else None),
        capacity_bytes_rank_min=capacity or (held / share if held and share else None),
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
    ranks = tuple(
        Rank(
            rank=rank.rank,
            step=times(rank.step_times_s),
            memory=rank.memory,
            regime=rank.regime,
            threads=rank.threads,
            sharded_share=rank.regime.sharded_parameters / rank.regime.parameters,
            traffic=rank.traffic,
            unit_parameters=rank.unit_parameters,
            regathered=rank.regathered,
            work=rank.work,
            compilation=rank.compilation,
            checkpoint=rank.checkpoint,
            coverage=rank.coverage,
            node=rank.node,
            unaccounted_share=_share_left(rank, PHASE_NAMES),
            dataload_share=_share_of(rank, ("dataload_wait",)),
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
        peak_allocated_bytes_rank_max=_worst([memory.peak_allocated_bytes for memory in memories]),
        peak_reserved_bytes_rank_max=_worst([memory.peak_reserved_bytes for memory in memories]),
        peak_rss_bytes_rank_max=_worst([memory.peak_rss_bytes for memory in memories]),
        capacity_share_rank_max=_worst(
            [None if memory.held_bytes is None else memory.held_bytes / memory.capacity_bytes for memory in memories]
        ),
        capacity_bytes_rank_min=min(memory.capacity_bytes for memory in memories),
        alloc_retries=sum(memory.alloc_retries for memory in memories),
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


def _share_of(rank: RankOk, phases: Iterable[str]) -> float | None:
    """Share of the phase window that these phases take."""
    if not (total := sum(rank.phase_times_s.get("total", ()))):
        return None
    return sum(sum(rank.phase_times_s[name]) for name in phases) / total


def _share_left(rank: RankOk, phases: Iterable[str]) -> float | None:
    taken = _share_of(rank, phases)
    return None if taken is None else 1 - taken


def times(samples: Sequence[float]) -> Times:
    """Statistics of raw samples."""
    return Times(mean_s=statistics.fmean(samples), samples_s=samples)


def _worst(values: Sequence[Number | None]) -> Number | None:
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None
