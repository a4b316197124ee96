"""Observes the regime that really runs, from the live objects and never from the request."""

import os
from collections.abc import Iterable
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
    parameters, sharded = _count(job.model)
    stepped, states = stepped_by(job.optimizer) if job.optimizer is not None else ((), ())
    moments = (t for state in states for t in state.values() if isinstance(t, Tensor) and t.numel() > 1)
    return Regime(
        world_size=job.accelerator.num_processes,
        ranks_per_node=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),  # set by torch's agent on each node
        distributed_type=job.accelerator.distributed_type.value,
        sharding=_sharding(job.model),
        parameters=parameters,
        sharded_parameters=sharded,
        weights_dtype=_dtypes(job.model.parameters()) or "none",
        masters_dtype=_dtypes(stepped),
        optimizer_dtype=_dtypes(moments),
        reduction_dtype=(step.reduction_dtype or _reduction(job.model)) if job.accelerator.num_processes > 1 else None,
        matmul_shares=step.matmul_shares,
        attention_kernels=tuple(sorted(step.attention)) or None,
        adam="+".join(sorted(step.adam)) or None,
        **sharding.observed(job.model, job.unit_names),
    )


def check(cell: Cell, device: Device, regime: Regime) -> None:
    """Raises RegimeMismatch, which names both sides of every difference."""
    unknown = {
        "matmul_dtype" if regime.matmul_shares is None else None,
        "reshard_after_forward" if regime.reshard_after_forward is None else None,  # no unit could show it
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


def _count(model: nn.Module) -> tuple[int, int]:
    """The number of scalars of all parameters, and of the parameters of which this rank holds only a part."""
    total = sharded = 0
    if isinstance(model, FSDP):
        for handle in FSDP.fsdp_modules(model):
            flat = handle._handle
            if flat is None:
                continue
            whole = flat.flat_param._unpadded_unsharded_size.numel()
            total += whole
            sharded += whole if flat.uses_sharded_strategy and handle.world_size > 1 else 0
        return total, sharded
    for parameter in model.parameters():
        whole, here = parameter.numel(), parameter.numel()
        if isinstance(parameter, DTensor):
            here = parameter.to_local().numel()
        elif hasattr(parameter, "ds_numel"):  # ZeRO-3 leaves an empty tensor while a parameter is partitioned
            partitioned: Any = parameter
            whole, here = partitioned.ds_numel, partitioned.ds_tensor.numel()
        total += whole
        sharded += whole if here < whole else 0
    return total, sharded


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
