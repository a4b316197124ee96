"""The training step, its phases and the two windows in which it is timed."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from bench.records.phases import BACKWARD_STEP, PHASE_NAMES, Stage
from bench.runner import recorder
from bench.runner.device import Shim
from bench.runner.forward import METRICS, Batch
from bench.runner.own_work import Span, blocked, own_work
from bench.runner.setup import Job

Batches = Iterator[Batch]
Lap = Callable[[str], None]
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
    """As recorded; see `recorder.collectives_since`. Only in the phase window."""
    host_times_s: list[float] = field(default_factory=list)
    """How long the host took to queue each step. Only in the throughput window."""
    own_work_s: dict[str, list[float]] = field(default_factory=dict)
    """By phase; only those in which waiting for other ranks is known."""


def step(job: Job, batches: Batches, lap: Lap) -> Tensor:
    """One training step. Nothing in it waits for the device.

    Args:
        batches: of this rank, on its device; the next one is taken.
        lap: called at the end of each phase, with its name from PHASES.

    Returns:
        The METRICS as means over ranks, fp32, on the device; 0 for a metric that the workload does not return.
    """
    batch = next(batches)
    lap("dataload_wait")
    output = job.forward(job.model, batch)
    lap("forward")
    job.accelerator.backward(output["loss"])
    lap("bwd")
    job.clip()
    lap("unscale_clip")
    if job.optimizer is not None:
        job.optimizer.step()
    lap("optim_step")
    if job.optimizer is not None:
        job.optimizer.zero_grad()
        job.scheduler.step()
    else:
        job.model.zero_grad()
    lap("zero_grad_sched")
    means = _gather(job, output)
    del batch, output  # freeing takes about a millisecond on a CPU and would count in no phase
    lap("sync_gather")
    return means


def _gather(job: Job, output: dict[str, Tensor]) -> Tensor:
    loss = output["loss"]
    local_M = torch.stack([output.get(name, torch.zeros_like(loss)).detach().float() for name in METRICS])
    gathered_RM: Tensor = job.accelerator.gather(local_M[None])
    return gathered_RM.mean(dim=0)


def throughput_window(job: Job, batches: Batches, steps: int, shim: Shim, beat: Beat, stage: Stage) -> Window:
    """Times whole steps by the device's own marks. The device always has work queued; the end waits for it."""
    marks: list[tuple[Any, Any]] = []
    host_times_s: list[float] = []
    metrics_SM = _room(job, steps)
    for index in range(steps):
        if index >= AHEAD:
            shim.reach(marks[index - AHEAD][1])
        beat(stage, index, steps)
        start, start_s = shim.mark(), time.perf_counter()
        metrics_SM[index] = step(job, batches, no_lap)
        host_times_s.append(time.perf_counter() - start_s)
        marks.append((start, shim.mark()))
    shim.synchronize()
    times_s = [shim.between_s(*pair) for pair in marks]
    return Window(times_s, {}, metrics_SM.tolist(), host_times_s=host_times_s)


def _room(job: Job, steps: int) -> Tensor:
    """For the metrics of a window. A tensor kept from each step would keep the heap from shrinking between steps."""
    return torch.zeros(steps, len(METRICS), device=job.accelerator.device)


def phase_window(job: Job, batches: Batches, steps: int, shim: Shim, beat: Beat) -> Window:
    """Times the phases of a step, with a synchronization at each boundary. `total` is timed on its own."""
    times_s: dict[str, list[float]] = {phase: [] for phase in (*PHASE_NAMES, "total")} if steps else {}
    metrics_SM, own_s = _room(job, steps), []
    spans: dict[str, Span] = {}
    since = 0.0
    collectives: list[dict[str, Any]] | None = None

    def lap(phase: str) -> None:
        nonlocal since
        shim.synchronize()
        now = time.perf_counter()
        times_s[phase].append(now - since)
        spans[phase] = since, now
        since = now

    with blocked() as waits:
        for index in range(steps):
            beat(Stage.PHASES, index, steps)
            shim.synchronize()
            job.accelerator.wait_for_everyone()
            waits.clear()
            start_ns = time.time_ns()
            start = since = time.perf_counter()
            metrics_SM[index] = step(job, batches, lap)
            times_s["total"].append(time.perf_counter() - start)
            collectives = recorder.collectives_since(start_ns)
            own_s.append(_own_work(spans, waits, collectives, start, start_ns))
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
    )


def _own_work(
    spans: Mapping[str, Span],
    waits: Sequence[Span],
    collectives: list[dict[str, Any]] | None,
    start: float,
    start_ns: int,
) -> dict[str, float]:
    """This rank's work in each phase of the last step; without those whose collectives block only the device."""
    if not collectives:  # one process; or lost, or not recorded: the gather at the end is a collective
        return {}
    issued = [start + (int(entry["time_created_ns"]) - start_ns) / 1e9 for entry in collectives]
    if dist.get_backend() != "gloo":  # also "cuda:nccl,cpu:gloo", which offloading takes
        spans = {name: (a, b) for name, (a, b) in spans.items() if not any(a <= at < b for at in issued)}
    return own_work(spans, waits, issued)


def no_lap(_phase: str) -> None:
    """For steps whose phases are not timed."""
