"""What wraps a model, and in which dtypes it and its optimizer are held: observed in the live objects."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP  # noqa: N817
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from .model import parameters_of
from .products import Computed

Offload = Literal["none", "optimizer", "params"]


def observed(
    model: nn.Module,
    optimizers: Sequence[Any],
    step: Computed,
    units: tuple[str, ...] = (),
    others: Sequence[nn.Module] = (),
) -> dict[str, Any]:
    """The attributes of `Regime` that the live objects show, after at least one step.

    Args:
        others: models that are trained, too: their parameters count.
        step: what one step computed. Without it, the reduction's dtype is that which the wrappers are configured for.
        units: class names of the modules that are sharded, each as one.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
    inside = [stepped_by(optimizer) for optimizer in optimizers]
    states = [state for _, states in inside for state in states]
    moments = (t for state in states for name, t in state.items() if isinstance(t, Tensor) and is_moment(name, t))
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    return {
        "sharding": sharding(model),
        **asdict(count(model, others)),
        "weights_dtype": dtypes(trained) or dtypes(frozen) or "none",
        "frozen_dtype": dtypes(frozen),
        "masters_dtype": dtypes(tensor for stepped, _ in inside for tensor in stepped),
        "optimizer_dtype": dtypes(moments),
        "reduction_dtype": step.reduction_dtype or reduction(model),
        "matmul_shares": step.matmul_shares,
        "float32_products": float32_products(device, step.matmul_shares),
        "attention_kernels": tuple(sorted(step.attention)) or None,
        "adam": "+".join(sorted(step.adam)) or None,
        **options(model, units),
    }


def stepped_alone(optimizers: Sequence[Any]) -> nn.Module:
    """What optimizers step, where no module holds it."""
    stepped = [one for optimizer in optimizers for one in parameters_of(optimizer)]
    return nn.ParameterList(one if isinstance(one, nn.Parameter) else nn.Parameter(one.detach()) for one in stepped)


def float32_products(device: torch.device, shares: Mapping[str, float] | None) -> str | None:
    """As `torch.set_float32_matmul_precision` or `torch.backends` set it."""
    if shares is not None and "float32" not in shares:
        return None
    of_device: Any = torch.backends.mkldnn if device.type == "cpu" else torch.backends.cuda
    everywhere: Any = torch.backends
    precisions = (of_device.matmul.fp32_precision, everywhere.fp32_precision)
    chosen = next((one for one in precisions if one != "none"), "none")
    return chosen if chosen in ("tf32", "bf16") else None


def sharding(model: nn.Module) -> str:
    if hasattr(model, "zero_optimization_stage"):
        engine: Any = model
        return f"zero{engine.zero_optimization_stage()}"
    if isinstance(model, FSDP):
        strategy: str = model.sharding_strategy.name
        return strategy.removeprefix("_")
    return "fully_shard" if isinstance(model, FSDPModule) else "none"


@dataclass
class Counts:
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


def count(model: nn.Module, others: Sequence[nn.Module] = ()) -> Counts:
    counts = Counts()
    if isinstance(model, FSDP):
        for wrapped in FSDP.fsdp_modules(model):
            if wrapped._handle is not None:
                _add_flat(counts, wrapped)
        return counts
    for parameter in dict.fromkeys(one for each in (model, *others) for one in each.parameters()):
        if is_lazy(parameter):  # never called, and so without a size
            continue
        whole = here = scalars(parameter)
        if isinstance(parameter, DTensor):
            here = scalars(parameter.to_local())
        elif hasattr(parameter, "ds_numel"):  # ZeRO-3 leaves an empty tensor while a parameter is partitioned
            partitioned: Any = parameter
            whole, here = partitioned.ds_numel, partitioned.ds_tensor.numel()
        counts.add(whole, here, trained=parameter.requires_grad)
    return counts


def scalars(tensor: Tensor) -> int:
    """As bytes of weights, gradients and an optimizer's state count them: a complex number is two."""
    return tensor.numel() * (2 if tensor.is_complex() else 1)


def _add_flat(counts: Counts, wrapped: FSDP) -> None:
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


def is_moment(name: str, tensor: Tensor) -> bool:
    """Whether a tensor of an optimizer's state has the size of a parameter, which may be one scalar; no step count."""
    return tensor.numel() > 1 or name.startswith("exp_avg")


def stepped_by(optimizer: Any) -> tuple[list[Tensor], list[dict[str, Any]]]:
    """What the optimizer inside the wrappers of accelerate, DeepSpeed and MasterWeights steps, and its states of them.

    An optimizer without state, such as plain SGD, steps the parameters in its groups.
    """
    optimizer = innermost(optimizer)
    listed = parameters_of(optimizer)
    kept = {key: state for key, state in optimizer.state.items() if isinstance(key, Tensor)}  # others: of all of them
    return list(kept) or listed, list(kept.values())


def reduction(model: nn.Module) -> str | None:
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
        return dtypes(p for p in model.parameters() if p.requires_grad) if not model._comm_hooks else "compressed"
    return None


def dtypes(tensors: Iterable[Tensor]) -> str | None:
    return "+".join(sorted({_name(tensor.dtype) for tensor in tensors})) or None


def _name(dtype: torch.dtype) -> str:
    return str(dtype.to_real()).removeprefix("torch.")  # complex64 is two float32


def options(model: nn.Module, units: tuple[str, ...]) -> dict[str, Any]:
    """The attributes of `Regime` that the options decide, from a prepared model that has made a step."""
    if isinstance(model, FSDPModule):
        sharded = (module for module in model.modules() if isinstance(module, FSDPModule))
        found = (module._get_fsdp_state()._fsdp_param_group for module in sharded)
        groups = [group for group in found if group is not None]
        root = _root(groups[0].mesh_info.mesh)
        return {
            "mesh": dict(zip(root.mesh_dim_names, root.mesh.shape, strict=True)) if root.mesh_dim_names else None,
            "reshard_after_forward": _reshards(groups) if units else None,
            "offload": _params(any(isinstance(group.offload_policy, CPUOffloadPolicy) for group in groups)),
        }
    if isinstance(model, FSDP):
        return {"offload": _params(model.cpu_offload.offload_params)}
    if hasattr(model, "zero_optimization_stage"):
        engine: Any = model
        return {"offload": _offload_of(engine.optimizer), "overlap_comm": engine.zero_overlap_comm()}
    return {}


def _root(part: DeviceMesh) -> DeviceMesh:
    """The whole mesh of which FSDP2 was given a part."""
    if hasattr(part, "_get_root_mesh"):
        return part._get_root_mesh()
    from torch.distributed import device_mesh  # before torch 2.10

    resources: Any = device_mesh._mesh_resources
    root: DeviceMesh = resources.get_root_mesh(part)
    return root


def _reshards(groups: list[Any]) -> bool | int:
    """What the units do after forward. accelerate has the root and what is near it keep their weights in any case."""
    to = [group.post_forward_mesh_info for group in groups if group.post_forward_mesh_info is not None]
    if not to:
        return False
    ranks: int = to[0].shard_mesh_size
    return True if ranks == groups[0].mesh_info.shard_mesh_size else ranks


def _params(offloaded: bool) -> Offload:
    return "params" if offloaded else "none"


def _offload_of(zero: Any) -> Offload:
    """Of DeepSpeed's ZeRO optimizer. Its first two stages name the flag differently than the third."""
    if getattr(zero, "offload_param", False):
        return "params"
    return "optimizer" if getattr(zero, "offload_optimizer", False) or getattr(zero, "cpu_offload", False) else "none"


def wrapper_in(root: nn.Module) -> nn.Module:
    """The outermost module that spreads a model over ranks; the root itself where none does."""
    return next((module for module in root.modules() if _spreads(module)), root)


def _spreads(module: nn.Module) -> bool:
    return isinstance(module, DistributedDataParallel | FSDP | FSDPModule) or hasattr(module, "zero_optimization_stage")


def distributed_type(wrapper: nn.Module, on_gpu: bool) -> str:
    """accelerate's name of what spreads a model."""
    if hasattr(wrapper, "zero_optimization_stage"):
        return "DEEPSPEED"
    if isinstance(wrapper, FSDP | FSDPModule):
        return "FSDP"
    if isinstance(wrapper, DistributedDataParallel):
        return "MULTI_GPU" if on_gpu else "MULTI_CPU"
    return "NO"


def innermost(optimizer: Any) -> Any:
    """The optimizer inside the wrappers of accelerate, DeepSpeed and MasterWeights."""
    while inner := getattr(optimizer, "optimizer", None) or getattr(optimizer, "inner", None):
        optimizer = inner
    return optimizer
