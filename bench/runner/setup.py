"""Builds what a step needs: accelerator, model, optimizer, scheduler and samples, in the backend's precision regime."""

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils.deepspeed import DummyOptim, DummyScheduler  # accelerate.utils has them with DeepSpeed alone
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from bench import workloads
from bench.backends import FAMILIES, Family, autocasts, backend_of, fp32_weights
from bench.errors import WorkloadError
from bench.records.cell import Cell
from bench.records.phases import Stage
from bench.records.precision import SCALED
from bench.records.rank_outcome import Work
from bench.records.script import MICRO_BATCHES
from bench.runner import sharding, tensors
from bench.runner.compiled import compile_as_requested
from bench.runner.coverage import Used
from bench.runner.device import DeviceAdapter, be_patient, bind_to_node
from bench.runner.forward import Batch, Forward
from bench.runner.groups import refuse_mixed, refuse_shared, shareable, units_of
from bench.runner.largest_samples import Sizes, sizes_of
from bench.runner.master_weights import MasterWeights
from bench.runner.optimizers import optimizer_of
from bench.runner.refusals import check_built, refuse_untrainable
from bench.runner.same_build import check_same_build
from bench.runner.samples import largest_of, loader_of, samples_of
from bench.runner.unit_names import unit_names
from bench.runner.units import Units
from bench.runner.weights import Undrawn


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a training step needs, prepared."""

    accelerator: Accelerator
    capacity_bytes: int
    """Memory that this rank may use after it has joined the others."""
    model: nn.Module
    optimizer: Any
    """accelerate's wrapper; None if only forward and backward run."""
    scheduler: Any
    loader: Callable[[int], Iterable[Batch]]
    """This rank's batches of so many samples, prepared. Every call starts at the first sample."""
    sizes: Sizes | None
    """Of the samples; None if the workload says that all have one."""
    largest: Callable[[int], Iterable[Batch]] | None
    """Batches of so many of the largest samples; None if all have one size."""
    masters: MasterWeights | None
    max_grad_norm: float | None
    micro_batches: int
    """Of one optimizer step."""
    reduces_each: bool
    """Whether ranks reduce their gradients in each micro-batch."""
    family: Family
    forward: Forward
    """Runs ``model`` on a batch."""
    unit_names: tuple[str, ...]
    """Classes of the modules that are sharded or compiled, each as one."""
    units: Units | None
    """None where they are compiled."""
    used: Used
    """What steps use of the model, once they are watched."""
    work: Callable[[Mapping[int, int]], Work | None]
    """What a sample takes, given how many samples had each length."""

    @property
    def scales(self) -> bool:
        """Whether gradients are scaled, and an optimizer's step is skipped if they overflow."""
        return self.accelerator.mixed_precision in SCALED and self.optimizer is not None

    def overflows(self) -> Callable[[], Tensor | bool]:
        """What to ask after each step from now on: whether it left the weights as they were, because its gradients
        overflowed. A fused optimizer skips its step on the device, where the answer then is."""
        if (scaler := self.accelerator.scaler) is None:  # DeepSpeed's engine looks at them in bf16, too
            return lambda: self.optimizer is not None and bool(self.optimizer.step_was_skipped)

        def scale() -> Tensor:
            first = torch.full((), scaler._init_scale, device=self.accelerator.device)  # torch makes it in backward
            return first if scaler._scale is None else scaler._scale.clone()

        before = scale()

        def overflowed() -> Tensor:
            nonlocal before
            earlier, before = before, scale()
            return before < earlier

        return overflowed

    @contextlib.contextmanager
    def micro_batch(self, *, last: bool) -> Iterator[None]:
        """Around the forward and backward of one micro-batch; after the ``last`` one, the optimizer steps."""
        self.accelerator.gradient_state._set_sync_gradients(last)  # DeepSpeed's engine steps inside backward then
        with contextlib.nullcontext() if last or self.reduces_each else self.accelerator.no_sync(self.model):
            yield

    def clip(self) -> None:
        """Clip gradients to the norm. DeepSpeed clips inside backward, by its own config."""
        if self.max_grad_norm is None:
            return
        if self.masters is not None:
            self.masters.clip_grad_norm_(self.max_grad_norm)
        elif self.optimizer is not None:
            self.accelerator.clip_grad_norm_(self.model.parameters(), self.max_grad_norm)


def set_up(
    cell: Cell,
    device: DeviceAdapter,
    batch_per_rank: int,
    *,
    check: bool = False,
    enter: Callable[[Stage], object] = lambda _: None,
) -> Job:
    """Join the other ranks and build the job.

    Args:
        check: compare the built model with those of the other ranks.
        enter: called at the beginning of each stage.

    Raises:
        InputError: the workload does not keep to its protocol.
        Exception: whatever torch, accelerate or DeepSpeed raise.
    """
    family = backend_of(cell).family
    enter(Stage.JOIN)
    if cell.train.cpu_affinity:
        device.bind_to_cores()
    elif cell.train.numa_binding and cell.accelerate is None:
        bind_to_node(device)
    # A config of the user runs as accelerate runs it, which computes under autocast around FSDP's own precision, too.
    autocast = cell.accelerate is not None or autocasts(cell)
    accelerator = device.open(family, cell.train, autocast=autocast)
    accelerator.gradient_accumulation_steps = micro_batches = cell.micro_batches(batch_per_rank)
    _keep_only_the_wrapper()
    # Only now: the stacks of the rendezvous' threads depend on the launcher and are no part of training.
    capacity_bytes = device.limit_memory(cell.memory_limit_bytes)
    enter(Stage.SETUP)
    task = task_of(cell)
    model, undrawn = build(cell, task)
    if check:
        check_same_build(model, undrawn)
    names = unit_names(model, workloads.load(cell.workload).units)
    refuse_untrainable(cell, accelerator.device, model)
    _configure(accelerator, cell, model, batch_per_rank, names)
    with whole_tensors(cell):
        work = None if _takes_tokens(task) else work_of(task)
    with tensors.counting(False):
        samples = samples_of(cell, task)
        worst = getattr(task, "worst_batch", None)
        looks = not (worst or getattr(task, "equal_samples", False))
        sizes = sizes_of(samples.dataset, accelerator) if looks else None
        largest = worst or (sizes and sizes.indices)
    forward = Forward(task, model, accelerator.device)
    used = Used(model)
    units = Units(model, names) if cell.train.compile == "none" else None
    placed = undrawn.placed(accelerator, backend_of(cell)) if undrawn else contextlib.nullcontext()
    plugin = getattr(accelerator.state, "fsdp_plugin", None)  # None where accelerate silently runs something else
    shared = shareable(model, plugin) if plugin and family == "fsdp2" else contextlib.nullcontext()
    if plugin and family == "fsdp":
        made = units_of(model, plugin.transformer_cls_names_to_wrap or ())
        refuse_shared(model, made)
        refuse_mixed(model, made)
    with sharding.meshed(accelerator, cell), placed, shared:
        prepared = _prepare(accelerator, cell, model, names)
    be_patient()
    if units:
        units.add(sharding.resharded(prepared.model))
    device.give_back()
    prepared.model.train()
    compile_as_requested(cell.train, prepared.model, names)
    return Job(
        accelerator=accelerator,
        capacity_bytes=capacity_bytes,
        model=prepared.model,
        optimizer=prepared.optimizer,
        scheduler=prepared.scheduler,
        loader=partial(loader_of, cell, samples, accelerator),
        sizes=sizes,
        largest=partial(largest_of, cell, samples, accelerator, largest) if largest else None,
        masters=prepared.masters,
        max_grad_norm=cell.train.max_grad_norm,
        micro_batches=micro_batches,
        reduces_each=cell.train.accumulate_sync == "each",
        family=family,
        forward=forward,
        unit_names=names,
        units=units,
        used=used,
        work=partial(_work_at, cell, task) if _takes_tokens(task) else lambda _: work,
    )


def _takes_tokens(task: workloads.Workload) -> bool:
    flops = getattr(task, "flops_per_sample", None)
    return flops is not None and bool(inspect.signature(flops).parameters)


def _flops(task: workloads.Workload, lengths: Mapping[int, int] | None) -> tuple[int, int] | None:
    """Of a step and recomputed, of one sample; a mean over lengths. None where it is not known."""
    if lengths is None:
        one = task.flops_per_sample()
        return None if one is None else (one.step, one.recomputed)
    each = {length: task.flops_per_sample(length) for length in lengths}  # type: ignore[call-arg]
    known = [(flops, lengths[length]) for length, flops in each.items() if flops is not None]
    total = sum(number for _, number in known)
    if not known or len(known) < len(each):
        return None
    return (
        round(sum(flops.step * number for flops, number in known) / total),
        round(sum(flops.recomputed * number for flops, number in known) / total),
    )


def _work_at(cell: Cell, task: workloads.Workload, lengths: Mapping[int, int]) -> Work | None:
    with whole_tensors(cell):
        return work_of(task, lengths)


def work_of(task: workloads.Workload, lengths: Mapping[int, int] | None = None) -> Work | None:
    """What one sample takes, as the workload states it; None where it states nothing.

    Args:
        lengths: how many samples had each number of tokens, where ``flops_per_sample`` takes it.

    Raises:
        WorkloadError: it states something else than whole numbers.
    """
    stated: dict[str, int] = {}
    try:
        if hasattr(task, "flops_per_sample") and (flops := _flops(task, lengths)) is not None:
            stated |= {"step_flops": flops[0], "recomputed_flops": flops[1]}
        if hasattr(task, "tokens_per_sample") and (tokens := task.tokens_per_sample()) is not None:
            stated |= {"tokens_per_sample": tokens}
        return Work(**stated) if stated else None
    except (AttributeError, TypeError, ValueError) as error:
        raise WorkloadError(
            "flops_per_sample() or tokens_per_sample() of the workload returned an invalid value:"
            f" {str(error).splitlines()[0]}",
            allowed=["flops_per_sample() with integers step and recomputed < step", "tokens_per_sample(): an integer"],
        ) from error


def _configure(
    accelerator: Accelerator, cell: Cell, model: nn.Module, batch_per_rank: int, units: tuple[str, ...]
) -> None:
    """Settings of the sharding libraries that depend on the model or the batch, or that accelerate has no field for."""
    family = backend_of(cell).family
    if family == "deepspeed":
        engine = accelerator.state.deepspeed_plugin.deepspeed_config
        engine |= {"train_micro_batch_size_per_gpu": batch_per_rank, "train_batch_size": "auto"}
        engine[MICRO_BATCHES] = accelerator.gradient_accumulation_steps
    if cell.accelerate is not None:
        return  # the user's own config stays as it is
    plugin = getattr(accelerator.state, "fsdp_plugin", None)  # None where accelerate silently runs something else
    if plugin is not None and plugin.transformer_cls_names_to_wrap is None:
        plugin.transformer_cls_names_to_wrap = list(units)
    if family == "deepspeed":
        _fit_buckets(accelerator, model)
    if family == "fsdp2" and cell.in_16_bits:
        _reduce_in_fp32(accelerator, getattr(torch, cell.computes_in))
    sharding.configure(accelerator, cell)


class _Prepared(NamedTuple):
    """What `Accelerator.prepare` made, as `Job` keeps it."""

    model: nn.Module
    optimizer: Any = None
    scheduler: Any = None
    masters: MasterWeights | None = None


def _prepare(accelerator: Accelerator, cell: Cell, model: nn.Module, units: tuple[str, ...]) -> _Prepared:
    """Shard or wrap the model, and make its optimizer and scheduler in the order that the backend needs."""
    family = backend_of(cell).family
    if cell.train.optimizer == "none" and family == "fsdp2":  # accelerate takes a model only with its optimizer
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters()))
        accelerator._optimizers.remove(optimizer)
        return _Prepared(model)
    if cell.train.optimizer == "none":
        return _Prepared(accelerator.prepare(model))
    if family == "deepspeed" and cell.accelerate is not None:
        return _Prepared(*accelerator.prepare(model, *_left_to_deepspeed(accelerator, cell, model, units)))
    if FAMILIES[family].prepares_optimizer:
        # These take over the optimizer while they shard the model.
        fails_fused = family == "fsdp" and cell.mixed_precision in SCALED  # see `backends.forbids`
        optimizer = optimizer_of(cell.train, model, units, "cpu" if fails_fused else accelerator.device.type)
        return _Prepared(*accelerator.prepare(model, optimizer, _constant(optimizer)))
    model = accelerator.prepare(model)
    optimizer = optimizer_of(cell.train, model, units, accelerator.device.type)
    masters = None
    if not fp32_weights(cell) and cell.train.master_weights:
        optimizer = masters = MasterWeights(optimizer)
    prepared, scheduler = accelerator.prepare(optimizer, _constant(optimizer))
    return _Prepared(model, prepared, scheduler, masters)


def _left_to_deepspeed(
    accelerator: Accelerator, cell: Cell, model: nn.Module, units: tuple[str, ...]
) -> tuple[Any, Any]:
    """The optimizer and scheduler for a user's DeepSpeed config; accelerate's dummies where it names its own."""
    engine, train, measure = accelerator.state.deepspeed_plugin.deepspeed_config, cell.train, cell.measure
    optimizer: Any
    if "optimizer" in engine:
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = DummyOptim(trained, lr=train.learning_rate, weight_decay=train.weight_decay)
    else:
        optimizer = optimizer_of(train, model, units, accelerator.device.type)
    if "scheduler" in engine:
        steps = measure.warmup_steps + measure.steps + measure.phase_steps
        # accelerate divides the steps by the ranks
        return optimizer, DummyScheduler(optimizer, total_num_steps=steps * accelerator.num_processes)
    if "optimizer" in engine:
        return optimizer, DummyScheduler(optimizer, lr_scheduler_callable=_constant)
    return optimizer, _constant(optimizer)


def _constant(optimizer: Optimizer) -> LambdaLR:
    return LambdaLR(optimizer, lambda _: 1.0)


def task_of(cell: Cell) -> workloads.Workload:
    """The cell's workload, configured."""
    kind = workloads.load(cell.workload)
    return kind.create(kind.Config.model_validate(cell.options))


def build(cell: Cell, task: workloads.Workload) -> tuple[nn.Module, Undrawn | None]:
    """The whole model, the same on every rank, in the dtype that its backend expects.

    Where its parameters are still to be drawn, they are on the meta device.
    """
    torch.manual_seed(cell.measure.seed)
    draws = workloads.load(cell.workload).draws
    with whole_tensors(cell), torch.device("meta") if draws else contextlib.nullcontext():
        model = task.build()
    check_built(model, draws=draws)
    if not fp32_weights(cell):
        # As DeepSpeed does; `to` would discard the imaginary parts of complex tensors.
        low = getattr(torch, cell.computes_in)
        model = model._apply(lambda one: one.to(low) if one.is_floating_point() else one)  # type: ignore[no-untyped-call]
    return model, Undrawn(model, task.draw, cell.measure.seed) if draws else None


def _keep_only_the_wrapper() -> None:
    """Under ``TORCH_DISTRIBUTED_DEBUG=DETAIL``, lower the level; the process group's wrapper still names a mismatch.

    At that level FSDP also checks the order itself, first, and raises a KeyError with original parameters (seen with
    torch 2.13). The process group exists by now, so its wrapper stays.
    """
    levels: Any = dist
    if levels.get_debug_level() == levels.DebugLevel.DETAIL:
        levels.set_debug_level(levels.DebugLevel.INFO)


@contextlib.contextmanager
def whole_tensors(cell: Cell) -> Iterator[None]:
    """Build whole tensors under ZeRO-3 too; it shards them in prepare().

    While an HfDeepSpeedConfig is active, transformers partitions every module at construction, but some initializers
    need whole tensors. `zero3_init_flag: false` does not turn that off.
    """
    if backend_of(cell).family != "deepspeed":
        yield
        return
    from transformers.integrations import deepspeed

    active = deepspeed._hf_deepspeed_config_weak_ref
    deepspeed._hf_deepspeed_config_weak_ref = None
    try:
        yield
    finally:
        deepspeed._hf_deepspeed_config_weak_ref = active


def _reduce_in_fp32(accelerator: Accelerator, computes_in: torch.dtype) -> None:
    """FSDP2's masters are fp32 shards, so its gradients are reduced in fp32; accelerate would take 16 bits."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    accelerator.state.fsdp_plugin.mixed_precision_policy = MixedPrecisionPolicy(
        param_dtype=computes_in, reduce_dtype=torch.float32
    )


def _fit_buckets(accelerator: Accelerator, model: nn.Module) -> None:
    """Make no bucket larger than what it is for: DeepSpeed would allocate all 5e8 elements of one that it never fills.

    Gradients that are reduced and weights that were stepped are of trained parameters; ZeRO-3 fetches all ahead.
    """
    parameters = list(model.parameters())
    everything, trained = sum(it.numel() for it in parameters), sum(it.numel() for it in parameters if it.requires_grad)
    sizes = {"reduce": (trained, 500_000_000), "allgather": (trained, 500_000_000)}
    zero = accelerator.state.deepspeed_plugin.deepspeed_config["zero_optimization"]
    for name, (elements, default) in {**sizes, "stage3_prefetch": (everything, 50_000_000)}.items():
        # DeepSpeed needs a multiple of twice the ranks.
        zero[f"{name}_bucket_size"] = min(-(-max(1, elements) // 1024) * 1024, default)
