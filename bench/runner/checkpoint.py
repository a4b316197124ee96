"""One checkpoint: what it costs to save and to load, and whether training goes on from it as it would have."""

import errno
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from bench.backends import FAMILIES
from bench.observe.effective import stepped_by
from bench.records.phases import Stage
from bench.records.rank_outcome import Checkpoint
from bench.runner.device import DeviceAdapter
from bench.runner.forward import METRICS, Batch
from bench.runner.setup import Job
from bench.runner.steps import Batches, Beat, step, untimed

STEPS = 2
"""Steps after saving, repeated after loading. The first shows the weights, the second the optimizer's state."""


def check_room(job: Job, folder: Path) -> None:
    """Raises OSError on every rank if a checkpoint may not fit on the disk of ``folder``.

    A rank that decided this alone would leave the others waiting for it in the save. Needs the optimizer's state, so
    at least one step.
    """
    here = torch.tensor([_written_bytes(job), shutil.disk_usage(folder).free], device=job.accelerator.device)
    ranks_R2 = job.accelerator.gather(here[None])
    needed, free = int(ranks_R2[:, 0].sum()), int(ranks_R2[:, 1].min())
    if needed > free:
        raise OSError(errno.ENOSPC, f"a checkpoint may take {needed:,} bytes, and {free:,} are free", str(folder))


def _written_bytes(job: Job) -> int:
    """At most what this rank writes: its part of the state, or all of it on rank 0 if every rank holds all."""
    if not FAMILIES[job.family].shards_state and not job.accelerator.is_main_process:
        return 0
    masters, states = stepped_by(job.optimizer) if job.optimizer is not None else ([], [])
    return _n_bytes([*job.model.parameters(), *masters, *(value for state in states for value in state.values())])


def _n_bytes(values: Iterable[object]) -> int:
    tensors = (value for value in values if isinstance(value, Tensor))
    here = (one.to_local() if isinstance(one, DTensor) else getattr(one, "ds_tensor", one) for one in tensors)
    return sum(one.nbytes for one in here)  # ds_tensor: ZeRO-3's part of a parameter


def save_and_load(job: Job, batches: Batches, folder: Path, device: DeviceAdapter, beat: Beat) -> Checkpoint:
    """Save to ``folder``, the same for all ranks, train a few steps, load, and train the same steps again.

    All ranks take part in each part of it. The folder is removed after that.
    """
    taken: list[Batch] = []

    def kept() -> Iterator[Batch]:
        for batch in batches:
            taken.append(batch)
            yield batch

    def timed(action: Callable[[str], object], index: int) -> float:
        beat(Stage.CHECKPOINT, index, 4)
        device.synchronize()
        job.accelerator.wait_for_everyone()
        start = time.perf_counter()
        action(str(folder))
        device.synchronize()
        job.accelerator.wait_for_everyone()
        return time.perf_counter() - start

    def losses(index: int, batches: Batches) -> tuple[float, ...]:
        beat(Stage.CHECKPOINT, index, 4)
        return tuple(float(step(job, batches, untimed)[METRICS.index("loss")]) for _ in range(STEPS))

    save_s = timed(job.accelerator.save_state, 0)
    stored_bytes = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    next_losses = losses(1, kept())
    scaler = job.accelerator.scaler
    if scaler is not None and job.accelerator.is_fsdp2:  # load_state expects one that no step has used
        scaler._scale = scaler._growth_tracker = None
    load_s = timed(job.accelerator.load_state, 2)
    resumed_losses = losses(3, iter(taken))  # its last gather shows that every rank has loaded
    if job.accelerator.is_main_process:
        shutil.rmtree(folder)
    return Checkpoint(
        save_s=save_s,
        load_s=load_s,
        stored_bytes=stored_bytes,
        next_losses=next_losses,
        resumed_losses=resumed_losses,
    )
