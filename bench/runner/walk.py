"""A walk: growing batches in one process, to learn how memory grows with a single set-up."""

from itertools import pairwise
from pathlib import Path

import torch

from bench.observe.beats import BeatFile
from bench.records.cell import Walk
from bench.records.phases import Stage
from bench.records.rank_outcome import Footprint, Memory, Walked
from bench.runner.device import DeviceAdapter
from bench.runner.setup import Job
from bench.runner.steps import step, untimed
from bench.store import spool

NEAR = 0.95
"""The walk ends before a batch that is likely to need more than this share of capacity on any rank."""


def walk(job: Job, walk: Walk, device: DeviceAdapter, out: Path, rank: int, beat: BeatFile) -> None:
    """Write a footprint of each batch to `walk<N>.json`, up to the first batch that is likely not to fit.

    The last footprint is of the first batch again. Its growth is what the process kept from the batches between, such
    as oneDNN's primitives; a fresh process at one batch would not hold it.
    """
    footprints: list[Footprint] = []
    used_bytes: list[tuple[int, int | None]] = []

    def measure(batch: int) -> None:
        beat(Stage.WALK, batch, walk.batches_per_rank[-1])
        batches = iter(job.loader(batch))
        device.give_back()
        if not footprints:
            step(job, batches, untimed)  # allocates the optimizer's state
        device.reset_peaks()
        step(job, batches, untimed)
        start = device.mark()
        step(job, batches, untimed)
        end = device.mark()
        if job.largest is not None:
            step(job, iter(job.largest(batch)), untimed)
        device.synchronize()
        took_s = device.between_s(start, end)
        memory = device.memory(job.capacity_bytes)
        used_bytes.append((batch, memory.used_bytes))
        footprints.append(
            Footprint(
                batch_per_rank=batch,
                memory=_without_free(memory, footprints),
                step_time_s=took_s,
                samples=walk.trained.rank_samples_per_step(batch),
            )
        )
        spool.write(out / f"walk{rank}.json", Walked(rank=rank, footprints=tuple(footprints)))

    for batch in walk.batches_per_rank:
        if not _everywhere(job, _likely_to_fit(used_bytes, batch, job.capacity_bytes)):
            break
        measure(batch)
    if len(footprints) > 1:
        measure(walk.batches_per_rank[0])


def _without_free(memory: Memory, footprints: list[Footprint]) -> Memory:
    """On a CPU a batch reuses the freed memory of earlier batches, which the data segment still counts: derive what the
    batch needs from resident pages."""
    now_bytes = memory.peak_rss_bytes
    first = footprints[0].memory if footprints else None
    if first is None or memory.peak_reserved_bytes is not None or now_bytes is None:
        return memory
    if first.peak_allocated_bytes is None or first.peak_rss_bytes is None:
        return memory
    needed_bytes = first.peak_allocated_bytes + now_bytes - first.peak_rss_bytes
    return memory.model_copy(update={"peak_allocated_bytes": needed_bytes})


def _likely_to_fit(used_bytes: list[tuple[int, int | None]], batch: int, capacity_bytes: int) -> bool:
    """Extrapolated from the last two batches."""
    points = [(point, used) for point, used in used_bytes if used is not None]
    if len(points) < 2:
        return True
    (batch_0, used_0), (batch_1, used_1) = list(pairwise(points))[-1]
    slope = max(0.0, (used_1 - used_0) / (batch_1 - batch_0))
    return used_1 + slope * (batch - batch_1) <= NEAR * capacity_bytes


def _everywhere(job: Job, here: bool) -> bool:
    """Whether all ranks agree: they continue together or not at all."""
    voted: torch.Tensor = job.accelerator.gather(torch.tensor([here], device=job.accelerator.device, dtype=torch.int32))
    return bool(voted.min())
