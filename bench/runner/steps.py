"""The training step, its phases and the two windows in which it is timed."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise, starmap
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from bench.observe import flight
from bench.observe.own_work import blocked, issued_s, own_work, without_blocking
from bench.records.phases import BACKWARD_STEP, PHASE_NAMES, Stage
from bench.runner import recorder
from bench.runner.device import DeviceAdapter
from bench.runner.forward import METRICS, Batch
from bench.runner.refusals import check_loss
from bench.runner.setup import Job

Batches = Iterator[Batch]
BeginPhase = Callable[[str], None]
Beat = Callable[[Stage, int, int], None]
AHEAD = 2
"""Steps that may be queued on the device: enough to keep it busy, and few enough for beats to show its progress."""


@dataclass(frozen=True)
class Window:
    """Raw samples of some consecutive steps."""

    times_s: list[float]
    phase_times_s: dict[str, list[float]]
    metrics: list[list[float]]
    last_step_collectives: list[dict[str, Any]] | None = None
    """As recorded; see `flight.collectives_since`. Only in the phase window."""
    skipped: int = 0
    """Steps whose gradients overflowed. Only in the throughput window."""
    peaks_bytes: list[int | None] = field(default_factory=list)
    """At the end of each step, as queued. Only in the throughput window."""
    host_times_s: list[float] = field(default_factory=list)
    """How long the host was busy or blocked until each step was queued. Only in the throughput window."""
    own_work_s: dict[str, list[float]] = field(default_factory=dict)
    """By phase; only those in which waiting for other ranks is known."""
    collective_times_s: tuple[float, ...] | None = None
    """Of each step of the phase window; see `recorder.times_s`."""


def step(job: Job, batches: Batches, begin_phase: BeginPhase) -> Tensor:
    """One training step. Nothing in it waits for the device.

    Args:
        batches: of this rank, on its device; the next `Job.micro_batches` are taken.
        begin_phase: called at the beginning of each phase, with its name from PHASES; again in each micro-batch. The
            last one ends with the step.

    Returns:
        The METRICS as means over ranks and micro-batches, fp32, on the device; 0 for a metric that the workload does
        not return.
    """
    earlier_M: Tensor | float = 0.0
    for left in reversed(range(job.micro_batches)):
        begin_phase("dataload_wait")
        batch = next(batches)
        with job.micro_batch(last=not left):
            begin_phase("forward")
            output = job.forward(job.model, batch)
            check_loss(output["loss"])
            begin_phase("bwd")
            job.accelerator.backward(output["loss"])  # accelerate or DeepSpeed divide it by the micro-batches
        if left:
            earlier_M += _metrics(output)
    begin_phase("unscale_clip")
    job.clip()
    begin_phase("optim_step")
    if job.optimizer is not None:
        job.optimizer.step()
    begin_phase("zero_grad_sched")
    if job.optimizer is not None:
        job.optimizer.zero_grad()
        job.scheduler.step()
    else:
        job.model.zero_grad()
    begin_phase("sync_gather")
    local_M = (earlier_M + _metrics(output)) / job.micro_batches
    gathered_RM: Tensor = job.accelerator.gather(local_M[None])
    means = gathered_RM.mean(dim=0)
    del batch, output  # freeing takes about a millisecond on a CPU and would count in no phase
    return means


def _metrics(output: dict[str, Tensor]) -> Tensor:
    loss = output["loss"]
    return torch.stack([output.get(name, torch.zeros_like(loss)).detach().float() for name in METRICS])


def throughput_window(
    job: Job, batches: Batches, steps: int, device: DeviceAdapter, beat: Beat, stage: Stage
) -> Window:
    """Times whole steps by the device's own marks. The device always has work queued; the end waits for it.

    A step lasts from the end of the one before it, so that the steps sum to the wall time of the window.
    """
    host_times_s: list[float] = []
    peaks_bytes: list[int | None] = []
    overflowed, skipped = job.overflows(), list[Tensor | bool]()
    metrics_SM = _room(job, steps)
    ends: list[Any] = []
    for index in range(steps):
        if index >= AHEAD:
            device.reach(ends[index - AHEAD + 1])
        beat(stage, index, steps)
        ends = ends or [device.mark()]  # the rank has entered the stage before
        start_s = time.perf_counter()
        metrics_SM[index] = step(job, batches, untimed)
        host_times_s.append(time.perf_counter() - start_s)
        ends.append(device.mark())
        peaks_bytes.append(device.peak_bytes())
        skipped.append(overflowed())
    device.synchronize()
    times_s = list(starmap(device.between_s, pairwise(ends)))
    return Window(
        times_s,
        {},
        metrics_SM.tolist(),
        host_times_s=host_times_s,
        skipped=sum(map(bool, skipped)),
        peaks_bytes=peaks_bytes,
    )


def settle(
    job: Job, batches: Batches, since_s: float, warm: Window, device: DeviceAdapter, beat: Beat, until_s: float
) -> Window:
    """More steps of warm-up, until all ranks have spent ``until_s`` in it. Every rank makes as many.

    Ranks agree by a collective after steps that all of them make, so none waits in a step that another leaves out.

    Args:
        since_s: when this rank's warm-up began, by ``time.perf_counter``.
        warm: the steps of the warm-up before these.
        until_s: seconds; the same on every rank.

    Returns:
        ``warm``, with the metrics of these steps.
    """
    metrics, pace_s = list(warm.metrics), warm.times_s[-1]
    while until_s:
        left_s = until_s - (time.perf_counter() - since_s)
        mine_2 = torch.tensor([[left_s, pace_s]], device=job.accelerator.device)
        left_s, pace_s = job.accelerator.gather(mine_2).amax(dim=0).tolist()
        if left_s <= 0:
            break
        more = throughput_window(job, batches, math.ceil(left_s / pace_s), device, beat, Stage.WARMUP)
        metrics += more.metrics
        pace_s = fmean(more.times_s)
    return replace(warm, metrics=metrics)


def _room(job: Job, steps: int) -> Tensor:
    """For the metrics of a window. A tensor kept from each step would keep the heap from shrinking between steps."""
    return torch.zeros(steps, len(METRICS), device=job.accelerator.device)


def phase_window(job: Job, batches: Batches, steps: int, device: DeviceAdapter, beat: Beat) -> Window:
    """Times the phases of a step, with a synchronization at each boundary. `total` is timed on its own."""
    times_s: dict[str, list[float]] = {phase: [] for phase in (*PHASE_NAMES, "total")} if steps else {}
    metrics_SM, own_s = _room(job, steps), []
    begun: list[tuple[str, float]] = []
    collectives: list[dict[str, Any]] | None = None
    # Only here, where steps are synchronized anyway: no other figure has the cost of the events.
    timed, spans_ns = steps > 0 and recorder.enable_timing(), []

    def begin_phase(phase: str) -> None:
        device.synchronize()
        begun.append((phase, time.perf_counter()))

    with blocked() as waits:
        for index in range(steps):
            beat(Stage.PHASES, index, steps)
            device.synchronize()
            job.accelerator.wait_for_everyone()
            waits.clear()
            begun.clear()
            start_ns = time.time_ns()
            start = time.perf_counter()
            metrics_SM[index] = step(job, batches, begin_phase)
            begin_phase("end")
            times_s["total"].append(time.perf_counter() - start)
            spans = [(phase, (begin, end)) for (phase, begin), (_, end) in pairwise(begun)]
            for phase in PHASE_NAMES:
                times_s[phase].append(sum(end - begin for name, (begin, end) in spans if name == phase))
            spans_ns.append((start_ns, time.time_ns()))
            collectives = flight.collectives_since(start_ns)
            issued = issued_s(collectives, start, start_ns)
            own_s.append(own_work(without_blocking(spans, issued), waits, issued) if issued else {})
    if steps:
        times_s["backward_step"] = [
            sum(parts) for parts in zip(*(times_s[part] for part in BACKWARD_STEP), strict=True)
        ]
    known = [phase for phase in PHASE_NAMES if own_s and all(phase in work_s for work_s in own_s)]
    return Window(
        [],
        times_s,
        metrics_SM.tolist(),
        own_work_s={phase: [work_s[phase] for work_s in own_s] for phase in known},
        last_step_collectives=collectives,
        collective_times_s=recorder.times_s(spans_ns) if timed else None,
    )


def untimed(_phase: str) -> None:
    """For steps whose phases are not timed."""
