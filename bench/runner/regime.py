"""Observes the regime that really runs, from the live objects and never from the request."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP  # noqa: N817
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from bench.backends import expected_regime, shards_parameters
from bench.records.base import Device
from bench.records.cell import Cell, Regime
from bench.runner import sharding
from bench.runner.computed import Computed
from bench.runner.setup import Job


class RegimeMismatch(RuntimeError):
    """The regime that ran differs from the regime that the cell requests."""


def observe(job: Job, step: Computed | None = None) -> Regime:
    """The regime of a job that has made at least one step, as this rank sees it.

    Args:
        step: what one step computed. Without it, the reduction's dtype is that which the wrappers are configured for.
    """
    step = step or Computed()
    trained = [parameter for parameter in job.model.parameters() if parameter.requires_grad]
    frozen = [parameter for parameter in job.model.parameters() if not parameter.requires_grad]
    stepped, states = stepped_by(job.optimizer) if job.optimizer is not None else ((), ())
    moments = (t for state in states for name, t in state.items() if isinstance(t, Tensor) and _is_moment(name, t))
    return Regime(
        world_size=job.accelerator.num_processes,
        ranks_per_node=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),  # set by torch's agent on each node
        distributed_type=job.accelerator.distributed_type.value,
        sharding=_sharding(job.model),
        **asdict(_count(job.model)),
        weights_dtype=_dtypes(trained) or _dtypes(frozen) or "none",
        frozen_dtype=_dtypes(frozen),
        masters_dtype=_dtypes(stepped),
        optimizer_dtype=_dtypes(moments),
        reduction_dtype=(step.reduction_dtype or _reduction(job.model)) if job.accelerator.num_processes > 1 else None,
        matmul_shares=step.matmul_shares,
        float32_products=_float32_products(job.accelerator.device, step.matmul_shares),
        attention_kernels=tuple(sorted(step.attention)) or None,
        adam="+".join(sorted(step.adam)) or None,
        **sharding.observed(job.model, job.unit_names),
    )


def _float32_products(device: torch.device, shares: Mapping[str, float] | None) -> str | None:
    """As `torch.set_float32_matmul_precision` or `torch.backends` set it."""
    if shares is not None and "float32" not in shares:
        return None
    of_device: Any = torch.backends.mkldnn if device.type == "cpu" else torch.backends.cuda
    everywhere: Any = torch.backends
    precisions = (of_device.matmul.fp32_precision, everywhere.fp32_precision)
    chosen = next((one for one in precisions if one != "none"), "none")
    return chosen if chosen in ("tf32", "bf16") else None


def check(cell: Cell, device: Device, regime: Regime) -> None:
    """Raises RegimeMismatch, which names both sides of every difference."""
    unknown = {
        "matmul_dtype" if regime.matmul_shares is None else None,
        "reshard_after_forward" if regime.reshard_after_forward is None else None,  # no unit could show it
        # What a rank does not hold, it does not step.
        "optimizer_dtype" if (regime.optimizer_dtype, regime.trained_on_rank) == (None, 0) else None,
    }
    differences = [
        f"{name}: requested {wanted}, observed {getattr(regime, name)}"
        for name, wanted in expected_regime(cell, device).items()
        if getattr(regime, name) != wanted and name not in unknown
    ]
    if shards_parameters(cell) != (regime.sharded_parameters > 0):
        wanted = "some" if shards_parameters(cell) else "none"
        differences.append(f"sharded_parameters: requested {wanted}, observed {regime.sharded_parameters}")
    if differences:
        raise RegimeMismatch(f"{cell.backend} did not run as requested: " + "; ".join(differences))


def _sharding(model: nn.Module) -> str:
    if hasattr(model, "zero_optimization_stage"):
        engine: Any = model
        return f"zero{engine.zero_optimization_stage()}"
    if isinstance(model, FSDP):
        strategy: str = model.sharding_strategy.name
        return strategy.removeprefix("_")
    return "fully_shard" if isinstance(model, FSDPModule) else "none"


@dataclass
class _Counts:
    """Scalars; see the fields of `Regime`."""

    parameters: int = 0
    trained_parameters: int = 0
    gradient_parameters: int = 0
    trained_on_rank: int = 0
    sharded_parameters: int = 0

    def add(self, whole: int, here: int, *, trained: bool) -> None:
        """A parameter of which this rank holds ``here`` scalars."""
        self.parameters += whole
        self.sharded_parameters += whole if here < whole else 0
        if trained:
            self.trained_parameters += whole
            self.gradient_parameters += whole
            self.trained_on_rank += here


def _count(model: nn.Module) -> _Counts:
    counts = _Counts()
    if isinstance(model, FSDP):
        for wrapped in FSDP.fsdp_modules(model):
            if wrapped._handle is not None:
                _add_flat(counts, wrapped)
        return counts
    for parameter in model.parameters():
        whole, here = parameter.numel(), parameter.numel()
        if isinstance(parameter, DTensor):
            here = parameter.to_local().numel()
        elif hasattr(parameter, "ds_numel"):  # ZeRO-3 leaves an empty tensor while a parameter is partitioned
            partitioned: Any = parameter
            whole, here = partitioned.ds_numel, partitioned.ds_tensor.numel()
        counts.add(whole, here, trained=parameter.requires_grad)
    return counts


def _add_flat(counts: _Counts, wrapped: FSDP) -> None:
    """FSDP1's flat parameter, in which parameters may be trained or not if they are kept as such."""
    handle: Any = wrapped._handle
    flat, is_cut = handle.flat_param, handle.uses_sharded_strategy and wrapped.world_size > 1
    wholes: tuple[int, ...] = flat._numels  # without what aligns them
    parts: list[nn.Parameter] | None = flat._params
    trained = [part.requires_grad for part in parts] if parts is not None else [flat.requires_grad] * len(wholes)
    counts.parameters += sum(wholes)
    counts.sharded_parameters += sum(wholes) if is_cut else 0
    counts.trained_parameters += sum(whole for whole, one in zip(wholes, trained, strict=True) if one)
    counts.gradient_parameters += sum(wholes) if flat.requires_grad else 0
    held = parts if parts is not None else [flat]
    counts.trained_on_rank += sum(part.numel() for part in held if part.requires_grad)


def _is_moment(name: str, tensor: Tensor) -> bool:
    """Whether a tensor of an optimizer's state has the size of a parameter, which may be one scalar; no step count."""
    return tensor.numel() > 1 or name.startswith("exp_avg")


def stepped_by(optimizer: Any) -> tuple[list[Tensor], list[dict[str, Any]]]:
    """What the optimizer inside the wrappers of accelerate, DeepSpeed and MasterWeights steps, and its states of them.

    An optimizer without state, such as plain SGD, steps the parameters in its groups.
    """
    while inner := getattr(optimizer, "optimizer", None) or getattr(optimizer, "inner", None):
        optimizer = inner
    listed = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return list(optimizer.state) or listed, list(optimizer.state.values())


def _reduction(model: nn.Module) -> str | None:
    if hasattr(model, "communication_data_type"):
        engine: Any = model
        return _name(engine.communication_data_type)
    if isinstance(model, FSDP):
        return _name(model.mixed_precision.reduce_dtype or torch.float32)
    if isinstance(model, FSDPModule):
        policy = model._get_fsdp_state()._mp_policy
        return _name(policy.reduce_dtype or policy.param_dtype or torch.float32)
    if isinstance(model, DistributedDataParallel):
        # Buckets hold gradients in their parameters' dtype; a communication hook could compress them.
        return _dtypes(p for p in model.parameters() if p.requires_grad) if not model._comm_hooks else "compressed"
    return None


def _dtypes(tensors: Iterable[Tensor]) -> str | None:
    return "+".join(sorted({_name(tensor.dtype) for tensor in tensors})) or None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
