"""The audits of `bench audit`, on one rank. Each writes its findings to `audit<N>.json`."""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist
from accelerate.utils import send_to_device
from torch import nn

from bench.audit.collectives import Issued
from bench.audit.dataloader import Loaded
from bench.audit.params import Looked, Parameter
from bench.backends import backend_of
from bench.errors import InputError
from bench.observe.beats import BeatFile
from bench.records.cell import Audit, AuditKind
from bench.records.phases import Stage
from bench.runner import profile, recorder
from bench.runner.device import DeviceAdapter
from bench.runner.forward import Forward, holds_tensor
from bench.runner.order import Order, watched
from bench.runner.samples import loader_of, samples_of
from bench.runner.setup import build, set_up, task_of
from bench.runner.steps import step, untimed
from bench.store import spool

Look = Callable[[Audit, DeviceAdapter, Path, int, BeatFile], None]


def run(audit: Audit, device: DeviceAdapter, out: Path, rank: int, beat: BeatFile) -> None:
    """Raises whatever a training step raises; the findings up to then are on disk."""
    LOOKS[audit.kind](audit, device, out, rank, beat)


def _collectives(audit: Audit, device: DeviceAdapter, out: Path, rank: int, beat: BeatFile) -> None:
    os.environ["TORCH_FR_BUFFER_SIZE"] = "100000"
    if backend_of(audit.cell).family != "ddp":  # crashes with DDP over a wrapped group (torch 2.13)
        levels: Any = dist
        levels.set_debug_level(levels.DebugLevel.DETAIL)
    failed_in: str | None = None
    used = Order()
    try:
        job = set_up(audit.cell, device, audit.batch_per_rank)
        batches = iter(job.loader(audit.batch_per_rank))
        with watched(job, used):
            for index in range(audit.steps):
                beat(Stage.AUDIT, index, audit.steps)
                used.next_step()
                step(job, batches, untimed)
                device.synchronize()  # ranks whose collectives differ then wait here, with their index
    except BaseException as error:
        # The recorder does not hold a refused collective.
        failed_in = recorder.site_of(error)
        raise
    finally:
        issued = Issued(rank=rank, collectives=recorder.collectives(), failed_in=failed_in, uses=tuple(used.uses))
        spool.write(spool.audit_file(out, rank), issued)


def _dataloader(audit: Audit, device: DeviceAdapter, out: Path, rank: int, beat: BeatFile) -> None:
    cell = audit.cell
    accelerator = device.open(backend_of(cell).family, cell.train)
    dataset = samples_of(cell, task_of(cell))
    loader = loader_of(cell, dataset, accelerator, audit.batch_per_rank, on_device=False)
    # Workers deliver in turns, in bursts. The first round starts them; the window holds whole rounds.
    first = max(1, cell.measure.dataloader_workers)
    steps = -(-audit.steps // first) * first
    fetch_times_s, to_device_times_s, ended = [], [], []
    accelerator.wait_for_everyone()  # once only: workers get ahead while ranks wait for each other
    ended.append(time.perf_counter())
    batches = iter(loader)
    for index in range(first + steps):
        beat(Stage.AUDIT, index, first + steps)
        start = time.perf_counter()
        batch = next(batches)
        fetched = time.perf_counter()
        if not index:
            _check_tensors(batch)
        send_to_device(batch, accelerator.device, non_blocking=accelerator.non_blocking)
        device.synchronize()
        ended.append(time.perf_counter())
        fetch_times_s.append(fetched - start)
        to_device_times_s.append(ended[-1] - fetched)
    loaded = Loaded(
        rank=rank,
        start_s=ended[first] - ended[0],
        fetch_times_s=tuple(fetch_times_s[first:]),
        to_device_times_s=tuple(to_device_times_s[first:]),
        window_s=ended[-1] - ended[first],
    )
    spool.write(spool.audit_file(out, rank), loaded)


def _check_tensors(batch: object) -> None:
    """Tensors may be in any container, but a batch without tensors cannot train a model."""
    if not holds_tensor(batch):
        raise InputError(
            f"the loader's batch, a {type(batch).__name__}, holds no tensor:"
            " a sample of the workload's dataset must be a dict or a tuple of tensors, or a tensor"
        )


def _params(audit: Audit, device: DeviceAdapter, out: Path, rank: int, beat: BeatFile) -> None:
    accelerator = device.open("single", audit.cell.train)
    task = task_of(audit.cell)
    model, undrawn = build(audit.cell, task)
    if undrawn is not None:
        undrawn.fill_all(accelerator.device)
    model.to(accelerator.device)
    model.train()
    dataset = samples_of(audit.cell, task)
    forward = Forward(task, model, accelerator.device)
    batches = iter(loader_of(audit.cell, dataset, accelerator, audit.batch_per_rank))
    named = dict(model.named_parameters())
    unused: dict[str, list[int]] = {name: [] for name in named}
    zero: dict[str, list[int]] = {name: [] for name in named}
    reached: set[str] = set()
    kept_alive = [
        _on_gradient(parameter, name, reached) for name, parameter in named.items() if parameter.requires_grad
    ]
    for index in range(audit.steps):
        beat(Stage.AUDIT, index, audit.steps)
        reached.clear()
        model.zero_grad()
        accelerator.backward(forward(model, next(batches))["loss"])
        for name, parameter in named.items():
            if name not in reached:
                unused[name].append(index)
            elif parameter.grad is None or not parameter.grad.any():
                zero[name].append(index)
    del kept_alive
    found = (
        Parameter(
            name=name,
            elements=parameter.numel(),
            requires_grad=parameter.requires_grad,
            unused_in=tuple(unused[name]),
            zero_in=tuple(zero[name]),
        )
        for name, parameter in named.items()
    )
    looked = Looked(rank=rank, batches=audit.steps, parameters=tuple(found), dropped_keys=forward.dropped)
    spool.write(spool.audit_file(out, rank), looked)


def _on_gradient(parameter: nn.Parameter, name: str, reached: set[str]) -> object:
    """Add ``name`` to ``reached`` when backward reaches ``parameter``, by the hook that DDP uses. Keep what it returns.

    The parameter's gradient would not show this: backward may reach it without one, which is enough for DDP.
    """
    made_from = parameter.expand_as(parameter).grad_fn
    assert made_from is not None
    accumulator = made_from.next_functions[0][0]
    assert accumulator is not None
    accumulator.register_hook(lambda *_: reached.add(name))
    return accumulator


LOOKS: Mapping[AuditKind, Look] = {
    "collectives": _collectives,
    "dataloader": _dataloader,
    "params": _params,
    "profile": profile.profile,
}
