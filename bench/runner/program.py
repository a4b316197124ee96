"""Traces the program of a training step on the meta device: nothing is computed, and no weight takes memory."""

import os
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, Literal
from unittest.mock import patch

import torch
from accelerate.utils import convert_outputs_to_fp32
from torch import Tensor, nn
from torch._ops import HigherOrderOperator
from torch.autograd.graph import _engine_run_backward
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

from bench import workloads
from bench.backends import autocasts
from bench.errors import InputError
from bench.observe.effective import scalars
from bench.records.base import Device
from bench.records.cell import Cell
from bench.records.program import Event, Moment, Parameter, Program
from bench.runner.autocast import autocast_on_meta, forget_copies
from bench.runner.forward import Batch, Forward
from bench.runner.groups import EMBEDDINGS, Group, groups, plugin_for, shareable, units_of
from bench.runner.kernels import Kernels
from bench.runner.largest_samples import scan
from bench.runner.refusals import check_built, sparse_embedding
from bench.runner.samples import samples_of, stacked, worst_of
from bench.runner.setup import task_of
from bench.runner.unit_names import unit_names

BLOCK_BYTES = {"cuda": 512, "cpu": 64}
"""What the device's allocator rounds a request up to: `kMinBlockSize` of torch's c10/cuda/CUDACachingAllocator.h, and
`gAlignment` of c10/core/alignment.h."""


class Live(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sums the bytes of all storages that an operator makes, for as long as each lives, and the work of operators.

    The storages of ``known`` tensors do not count.
    """

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __init__(self, device: Device, known: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._block = BLOCK_BYTES[device]
        self._known = [tensor.untyped_storage() for tensor in known]
        self._storages: dict[int, object] = {id(storage): storage for storage in self._known}
        self.live = self.peak = self.moved = self.operators = 0
        self.flops = Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        grouped = func is torch.ops.aten._grouped_mm.default and args[0].is_meta
        out = _grouped_product(*args, **(kwargs or {})) if grouped else func(*args, **(kwargs or {}))
        made = _tensors(out)
        for tensor in made:
            self._add(tensor.untyped_storage())
        if isinstance(func, HigherOrderOperator):
            self.operators += 1
            return out
        if not func.is_view:
            self.operators += 1
            self.moved += _bytes((*made, *_tensors((args, kwargs))))
        if (count := flop_registry.get(func._overloadpacket)) is not None:
            dtype = next(value.dtype for value in args if isinstance(value, Tensor))
            self.flops[str(dtype).removeprefix("torch.")] += count(*args, **(kwargs or {}), out_val=out)
        return out

    def _add(self, storage: torch.UntypedStorage) -> None:
        key = id(storage)
        if key in self._storages:
            return
        size = -(-storage.nbytes() // self._block) * self._block
        self._storages[key] = weakref.ref(storage, lambda _: self._drop(key, size))
        self.live += size
        self.peak = max(self.peak, self.live)

    def _drop(self, key: int, size: int) -> None:
        self._storages.pop(key, None)
        self.live -= size


def _grouped_product(
    a: Tensor, b: Tensor, offs: Tensor | None = None, _bias: None = None, out_dtype: torch.dtype | None = None
) -> Tensor:
    """Of experts. torch's own for the meta device takes bf16 alone; kernels of CPUs and GPUs take fp32, too."""
    groups = () if a.ndim != b.ndim else (len(a if offs is None else offs),)
    return a.new_empty((*groups, a.shape[-2], b.shape[-1]), dtype=out_dtype)


class _Trace:
    """The events of one step at one batch."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self.events: list[tuple[Event, int | None]] = []
        self.bytes: list[tuple[int, int]] = []
        self.assumed = 0

    def mark(self, event: Event, index: int | None = None) -> None:
        live = self._live
        self.events.append((event, index))
        self.bytes.append((live.peak, live.live))
        live.peak = live.live


def trace(cell: Cell, device: Device, batches: tuple[int, ...], *, cudnn: bool = False) -> Program:
    """The program of ``cell`` as it runs with kernels of ``device``.

    Args:
        cudnn: as `Kernels`.

    Raises:
        InputError: the size of a gradient is not known.
        Exception: whatever the model raises where it needs the values of tensors: on the meta device there are none.
    """
    start = time.perf_counter()
    task = task_of(cell)
    autocast = autocasts(cell)
    low = cell.in_16_bits and not autocast
    with torch.device("meta"):
        model = task.build().train()
    check_built(model, draws=True)
    if path := sparse_embedding(model):
        raise InputError(f"the embedding {path} has sparse=True, and the size of its gradient depends on the samples")
    if low:
        model = model.bfloat16()
    names = unit_names(model, workloads.load(cell.workload).units)
    units = units_of(model, names)
    modules = [module for group in units for module in group.modules]
    others = _others(model, names, modules)
    parameters = _parameters(model, modules, others)
    samples = samples_of(cell, task)
    # Peaks of attempts include a step with the largest samples, too.
    if worst := getattr(task, "worst_batch", None):
        [sample] = worst_of(worst, samples.dataset, 1)
    else:
        largest = () if getattr(task, "equal_samples", False) else scan(samples.dataset).indices
        sample = samples.dataset[largest[0] if largest else 0]
    sample = _meta(sample) if samples.collate is stacked else sample  # a collate of the user may need values
    of_model = partial(
        _trace_model,
        model,
        Forward(task, model),
        lambda size: samples.collate([sample] * size),
        units=units,
        others=others,
        parameters=parameters,
        batches=batches,
        device=device,
        cudnn=cudnn,
        weights_bytes=2 if low else 4,
        autocast=autocast,
    )
    program, trained = of_model(), {one.unit for one in parameters if one.trained}
    flattened = [
        parameter
        for parameter, one in zip(model.parameters(), parameters, strict=True)
        if not one.trained and one.unit in trained and parameter.is_floating_point()
    ]
    for parameter in flattened:
        parameter.requires_grad_(True)
    flat = of_model() if flattened else None
    return program.model_copy(update={"flat": flat, "seconds": time.perf_counter() - start})


def _trace_model(
    model: nn.Module,
    forward: Forward,
    batch_of: Callable[[int], Batch],
    *,
    units: list[Group],
    others: list[Group],
    parameters: list[Parameter],
    batches: tuple[int, ...],
    device: Device,
    cudnn: bool,
    weights_bytes: Literal[2, 4],
    autocast: bool,
) -> Program:
    made = [*units, *others]
    traces, lives = [], []
    for size in batches:
        batch = _meta(batch_of(size))
        done, live = _step(model, forward, batch, made, Kernels(device, cudnn=cudnn), device, autocast=autocast)
        traces.append(done)
        lives.append(live)
    first = traces[0]
    if any(one.events != first.events for one in traces):
        raise ValueError("the step does other things at another batch")
    return Program(
        device=device,
        batches=batches,
        parameters=tuple(parameters),
        weights_bytes=weights_bytes,
        buffers_bytes=_bytes(model.buffers()),
        units=len(units),
        kept=tuple(index for index, one in enumerate(others, len(units)) if not one.reshards),
        moments=tuple(
            Moment(
                event=event,
                index=index,
                peak_bytes=tuple(one.bytes[at][0] for one in traces),
                live_bytes=tuple(one.bytes[at][1] for one in traces),
            )
            for at, (event, index) in enumerate(first.events)
        ),
        input_bytes=_bytes(_tensors(batch_of(1))),
        flops={name: tuple(live.flops[name] for live in lives) for name in lives[0].flops},
        moved_bytes=tuple(live.moved for live in lives),
        operators=lives[0].operators,
        assumed=first.assumed,
        seconds=0.0,
    )


def _step(
    model: nn.Module,
    forward: Forward,
    batch: Batch,
    made: list[Group],
    kernels: Kernels,
    device: Device,
    *,
    autocast: bool,
) -> tuple[_Trace, Live]:
    """Forward and backward once, watched."""
    casts = autocast_on_meta(device) if autocast else nullcontext()
    # transformers checks that pictures fit the text by values, which tensors on the meta device do not have.
    unchecked = patch.dict(os.environ, TRANSFORMERS_DISABLE_TORCH_CHECK="1")
    run = convert_outputs_to_fp32(_under_autocast(model)) if autocast else model
    live = Live(device, [*model.parameters(), *model.buffers(), *_tensors(batch)])
    trace = _Trace(live)
    with _marked(model, made, trace.mark), casts, unchecked, kernels, live:
        loss = forward(run, batch)["loss"]
        trace.mark("forward_end")
        _backward(loss)
        trace.mark("end")
    trace.assumed = kernels.assumed
    return trace, live


def _under_autocast(model: nn.Module) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = model(*args, **kwargs)
        forget_copies()
        return output

    return run


def _backward(loss: Tensor) -> None:
    """`torch.autograd.backward`, which would hide `Kernels` from what checkpointing recomputes."""
    ones = torch.ones_like(loss)
    _engine_run_backward((loss,), (ones,), False, False, (), allow_unreachable=True, accumulate_grad=True)


@contextmanager
def _marked(model: nn.Module, made: list[Group], mark: Callable[[Event, int | None], None]) -> Iterator[None]:
    """While the model has hooks that report its units, other groups and gradients."""
    to_run = [set(group.modules) for group in made]

    def leaves(index: int, module: nn.Module, output: Any) -> None:
        to_run[index].discard(module)
        if to_run[index] or made[index].late:
            return
        to_run[index].update(made[index].modules)
        mark("leave", index)
        if torch._C._current_graph_task_id() == -1:  # else backward repeats the forward
            for tensor in _tensors(output):
                if tensor.requires_grad:
                    tensor.register_hook(lambda _: mark("backward", index))  # type: ignore[no-untyped-call]

    def completes(index: int, parameter: Tensor) -> None:
        parameter.grad = None  # what becomes of it depends on the backend
        mark("gradient", index)

    with ExitStack() as hooks:
        for index, unit in ((index, unit) for index, group in enumerate(made) for unit in group.modules):
            hooks.enter_context(unit.register_forward_pre_hook(lambda *_, index=index: mark("enter", index)))
            left = unit.register_forward_hook(lambda *given, index=index: leaves(index, given[0], given[-1]))
            hooks.enter_context(left)
        for index, parameter in enumerate(model.parameters()):
            if parameter.requires_grad:
                accumulated: Any = parameter.register_post_accumulate_grad_hook
                hooks.enter_context(accumulated(lambda given, index=index: completes(index, given)))
        yield


def _others(model: nn.Module, names: tuple[str, ...], units: list[nn.Module]) -> list[Group]:
    """FSDP2's groups besides the units."""
    plugin = plugin_for(names)
    with shareable(model, plugin):
        made = groups(model, plugin)
        embedding = getattr(model, EMBEDDINGS[0], lambda: None)()
    return [
        one._replace(late=len(one.modules) > 1 and embedding in one.modules)
        for one in made
        if not {*one.modules} & {*units}
    ]


def _parameters(model: nn.Module, units: list[nn.Module], others: list[Group]) -> list[Parameter]:
    """The parameters of the model, with the innermost unit of each, or the group that it is in."""
    unit = {parameter: index for index, unit in enumerate(units) for parameter in unit.parameters()}
    group = {
        parameter: index
        for index, other in enumerate(others, len(units))
        for module in other.modules
        for parameter in module.parameters()
        if parameter not in unit
    }
    return [
        Parameter(elements=scalars(one), unit=unit.get(one), group=group.get(one), trained=one.requires_grad)
        for one in model.parameters()
    ]


def _meta(batch: Batch) -> Any:
    """The batch without values."""
    return tree_map(lambda part: part.to("meta") if isinstance(part, Tensor) else part, batch)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _bytes(tensors: Iterable[Any]) -> int:
    return sum(one.numel() * one.element_size() for one in tensors if isinstance(one, Tensor))
