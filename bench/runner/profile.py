"""Some profiled steps of one rank, with its phases, units, waits and recomputation marked in the trace."""

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.autograd.profiler import record_function
from torch.nn.modules import module as modules

from bench.audit.profile import Profiled, snapshot_file, trace_file
from bench.observe import flight
from bench.observe.beats import BeatFile
from bench.observe.own_work import waits_through
from bench.records.cell import Audit
from bench.records.phases import Stage
from bench.runner import recorder, tensors
from bench.runner.device import DeviceAdapter
from bench.runner.peak import memory
from bench.runner.setup import Job, set_up
from bench.runner.steps import Batches, step, throughput_window
from bench.store import spool


def profile(audit: Audit, device: DeviceAdapter, out: Path, rank: int, beat: BeatFile) -> None:
    """Warm up as a measured attempt does, take steps without the profiler, then as many with it.

    Raises:
        Exception: whatever a training step raises.
    """
    os.environ["TORCH_FR_BUFFER_SIZE"] = "100000"  # the sizes of all collectives
    measure = audit.cell.measure
    with tensors.counting(True):  # see `tensors.peak_bytes`
        job = set_up(audit.cell, device, audit.batch_per_rank, enter=beat)
        batches = iter(job.loader(audit.batch_per_rank))
        throughput_window(job, batches, max(2, measure.warmup_steps), device, beat, Stage.WARMUP)
    plain = throughput_window(job, batches, audit.steps, device, beat, Stage.MEASURE)
    compiled = audit.cell.train.compile != "none"
    with _profiler():  # starting the first one takes longer
        _steps(job, batches, 1, device, beat, compiled=compiled)
    with _profiler() as profiler:
        start_ns = time.time_ns()
        profiled = _steps(job, batches, audit.steps, device, beat, compiled=compiled)
        entries = flight.collectives_since(start_ns) or []
        profiler.add_metadata_json("bench", json.dumps({"collectives": recorder.sizes(entries)}))
    file = trace_file(out, rank)
    profiler.export_chrome_trace(str(file.with_name(f".{file.name}")))
    file.with_name(f".{file.name}").replace(file)
    found = Profiled(
        rank=rank,
        profiled_times_s=tuple(profiled),
        unprofiled_times_s=tuple(plain.times_s),
        memory=memory(job, batches, snapshot_file(out, rank), compiled=compiled),
    )
    spool.write(spool.audit_file(out, rank), found)


def _profiler() -> torch.profiler.profile:
    return torch.profiler.profile(record_shapes=False, with_stack=False, acc_events=True)


def _steps(
    job: Job, batches: Batches, steps: int, device: DeviceAdapter, beat: BeatFile, *, compiled: bool
) -> list[float]:
    """Seconds of each step, which begins where the one before it ends. Ranks start together."""
    device.synchronize()
    job.accelerator.wait_for_everyone()
    marks: list[Any] = []
    with waits_through(_marked), contextlib.nullcontext() if compiled else _modules_marked(job.unit_names):
        marks.append(device.mark())
        for index in range(steps):
            beat(Stage.AUDIT, index, steps)
            with record_function("bench:step"):
                of_step = PhaseMarks()
                step(job, batches, of_step)
                of_step.end()
                marks.append(device.mark())
                if index == steps - 1:
                    device.synchronize()
    return [device.between_s(*pair) for pair in pairwise(marks)]


class PhaseMarks:
    """Marks the phases of a step, which follow each other."""

    def __init__(self) -> None:
        self._open: Any = None

    def __call__(self, phase: str) -> None:
        self.end()
        self._open = record_function(f"bench:phase:{phase}")
        self._open.__enter__()

    def end(self) -> None:
        """Close the phase that is open."""
        if self._open is not None:
            self._open.__exit__(None, None, None)
        self._open = None


def _marked(wait: Callable[..., Any]) -> Callable[..., Any]:
    def marked(*args: Any, **kwargs: Any) -> Any:
        with record_function("bench:wait"):
            return wait(*args, **kwargs)

    return marked


@contextlib.contextmanager
def _modules_marked(units: tuple[str, ...]) -> Iterator[None]:
    """Marks each forward of a unit, and whatever backward runs of a forward: recomputation."""
    running = threading.local()

    def names_of(module: nn.Module) -> Iterator[str]:
        in_backward = torch._C._current_graph_task_id() != -1
        if in_backward and not any(name == "bench:recompute" for _, name, _ in running.stack):
            yield "bench:recompute"
        kind = type(module).__name__.removeprefix("FSDP")  # FSDP2 derives a class of its own
        if kind in units:
            yield f"bench:unit:{kind}"

    def before(module: nn.Module, _inputs: object) -> None:
        if not hasattr(running, "stack"):
            running.stack = []
        for name in list(names_of(module)):
            opened: Any = record_function(name)
            opened.__enter__()
            running.stack.append((module, name, opened))

    def after(module: nn.Module, _inputs: object, _output: object) -> None:
        while running.stack and running.stack[-1][0] is module:
            running.stack.pop()[2].__exit__(None, None, None)

    with (
        modules.register_module_forward_pre_hook(before),
        # checkpointing ends a recomputation early, by an exception
        modules.register_module_forward_hook(after, always_call=True),
    ):
        yield
