"""The memory of one step of this rank: what its tensors take and give back, and what the model's own tensors are."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP  # noqa: N817
from torch.nn.modules import module as modules
from torch.optim import optimizer
from torch.utils._pytree import tree_leaves

from bench.observe.effective import is_moment, stepped_by
from bench.records.peak import AtPeak, Move, Seen, Span, at_peak
from bench.runner import tensors
from bench.runner.setup import Job
from bench.runner.steps import Batches, step, untimed
from bench.runner.tensors import Moved

ENTRIES = 1_000_000
"""Of the allocator's history on CUDA; a step takes some ten thousand."""


def memory(job: Job, batches: Batches, snapshot: Path, *, compiled: bool) -> AtPeak | None:
    """What lives at the peak of another step, after one to compare with.

    On a CPU, tensors must have been counted from set-up to the end of the warm-up, see `tensors.peak_bytes`.

    Args:
        snapshot: where the allocator's snapshot goes, on CUDA.
        compiled: whether modules are compiled: then nothing is asked of them.

    Returns:
        None where this torch does not count the tensors of a CPU.
    """
    watch, on_cuda = _Watch(job), job.accelerator.device.type == "cuda"

    def watched() -> None:
        with watch.optimizers(), contextlib.nullcontext() if compiled else watch.modules():
            watch.start()
            step(job, batches, watch.begin_phase)
            watch.end_phase()

    before, unused = partial(step, job, batches, untimed), None
    if on_cuda:
        before()
        moved: Moved | None = _on_cuda(watched, snapshot)
        unused = max(0, torch.cuda.memory_reserved() - torch.cuda.max_memory_allocated())
    else:
        moved = tensors.moves(before, watched)
    if moved is None:
        return None
    found = at_peak(moved.before_bytes, watch.held, moved.moves, watch.spans, watch.seen)
    return found.model_copy(update={"unused_bytes": unused})


def _on_cuda(step: Callable[[], object], file: Path) -> Moved:
    """Like `tensors.moves`, from the allocator's history, which is kept in ``file``."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    torch.cuda.memory._record_memory_history(max_entries=ENTRIES)
    try:
        step()
        torch.cuda.synchronize()
        torch.cuda.memory._dump_snapshot(str(file))  # type: ignore[no-untyped-call]
        snapshot: Mapping[str, Any] = torch.cuda.memory._snapshot()
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    return Moved(before, list(moves_of(snapshot["device_traces"][torch.cuda.current_device()])))


def moves_of(history: list[dict[str, Any]]) -> Iterator[Move]:
    """What an allocator's history says of tensors, not of the segments that hold them."""
    signs = {"alloc": 1, "free_completed": -1}
    for entry in history:
        if sign := signs.get(entry["action"]):
            yield Move(entry["time_us"] * 1000, entry["addr"], sign * entry["size"])


class _Watch:
    """Phases and units of a step, and where the model's tensors are meanwhile."""

    def __init__(self, job: Job) -> None:
        self.held: dict[int, tuple[str, int]] = {}
        self.spans: list[Span] = []
        self.seen: list[Seen] = []
        self._job, self._since_ns, self._phase = job, 0, ""
        self._running = threading.local()
        self._stepped_ns: list[int] = []
        """When optimizers have ended in the phase that is open."""
        self._watched: set[Tensor] = set()
        self._hooks = contextlib.ExitStack()

    def start(self) -> None:
        """At the beginning of the step."""
        self._since_ns = time.time_ns()
        for part, tensor in self._known():
            if pointer := _pointer(tensor):
                self.held.setdefault(pointer, (part, _local(tensor).untyped_storage().nbytes()))

    def begin_phase(self, phase: str) -> None:
        if self._phase:
            self.end_phase()
        self._phase = phase

    def end_phase(self) -> None:
        """Of the phase that has begun last."""
        now_ns = time.time_ns()
        since = (self._since_ns, *self._stepped_ns)
        self.spans += [Span(self._phase, since_ns, now_ns, unit=False) for since_ns in since]
        self._stepped_ns.clear()
        self._gradients()
        self._since_ns = time.time_ns()

    def _steps(self, *_: object) -> None:
        """The optimizer begins; that of DeepSpeed does so within backward."""
        self._gradients()
        now_ns = time.time_ns()
        self.spans.append(Span("optim_step", now_ns, now_ns, unit=False))

    def _stepped(self, *_: object) -> None:
        self._stepped_ns.append(time.time_ns())

    def _gradients(self) -> None:
        for part, tensor in self._known():
            if part == "gradients":
                self._meet(part, tensor)

    def _known(self) -> Iterator[tuple[str, Tensor]]:
        """What the model and the optimizer hold between steps, by part of a plan."""
        job = self._job
        for module in job.model.modules():
            handle: Any = module._handle if isinstance(module, FSDP) else None
            held = [handle.flat_param] if handle is not None else []
            for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False), *held):
                yield "weights", tensor
                for name in ("ds_tensor", "_local_shard"):  # of ZeRO-3, and of FSDP1
                    if isinstance(part := getattr(tensor, name, None), Tensor):
                        yield "weights", part
                if tensor.grad is not None:
                    yield "gradients", tensor.grad
        if job.optimizer is None:
            return
        stepped, states = stepped_by(job.optimizer)
        for tensor in stepped:
            yield "masters", tensor  # unless it is a weight itself
            if tensor.grad is not None:
                yield "gradients", tensor.grad
        for state in states:
            for name, value in state.items():
                if isinstance(value, Tensor) and is_moment(name, value):
                    yield "moments", value

    def _meet(self, part: str, tensor: Tensor) -> None:
        if (pointer := _pointer(tensor)) and pointer not in self.held:
            self.seen.append(Seen(time.time_ns(), pointer, part))

    def _look(self, module: nn.Module, *_: object) -> None:
        """Sharded weights are whole around the work of their module, in memory that is not theirs else."""
        for parameter in module.parameters(recurse=False):
            self._meet("gathered", parameter)
            if parameter.requires_grad and parameter.is_leaf and parameter not in self._watched:
                self._watched.add(parameter)
                accumulated: Any = parameter.register_post_accumulate_grad_hook
                self._hooks.enter_context(accumulated(self._gradient))

    def _gradient(self, parameter: Tensor) -> None:
        if parameter.grad is not None:
            self._meet("gradients", parameter.grad)

    @contextlib.contextmanager
    def optimizers(self) -> Iterator[None]:
        """While the optimizer's own step is watched."""
        with (
            optimizer.register_optimizer_step_pre_hook(self._steps),
            optimizer.register_optimizer_step_post_hook(self._stepped),
        ):
            yield

    @contextlib.contextmanager
    def modules(self) -> Iterator[None]:
        """While modules are watched, in forward and in backward."""
        running = self._running

        def before(module: nn.Module, _inputs: object) -> None:
            running.stack = [*getattr(running, "stack", ()), (module, time.time_ns())]

        def after(module: nn.Module, _inputs: object, output: object) -> None:
            while running.stack:
                entered, since_ns = running.stack.pop()
                if entered is module:
                    break
            kind = type(module).__name__.removeprefix("FSDP")
            if kind in self._job.unit_names:
                self.spans.append(Span(kind, since_ns, time.time_ns(), unit=True))
            self._look(module)
            for leaf in tree_leaves(output):
                if isinstance(leaf, Tensor) and leaf.requires_grad and leaf.grad_fn is not None:
                    leaf.register_hook(partial(self._look, module))  # type: ignore[no-untyped-call]

        with self._hooks:
            self._hooks.enter_context(modules.register_module_forward_pre_hook(before))
            self._hooks.enter_context(modules.register_module_forward_hook(after, always_call=True))
            yield


def _local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor that is spread over ranks."""
    local: Tensor = getattr(tensor, "_local_tensor", tensor)
    return local


def _pointer(tensor: Tensor) -> int:
    """Where its memory begins; 0 for a tensor without any."""
    return _local(tensor).untyped_storage().data_ptr()
