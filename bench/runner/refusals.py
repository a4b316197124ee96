"""Models that nothing, or not this backend, can train. Each ends in an error of torch or DeepSpeed that names neither
what is in the model nor what to do; here it ends in one message that does."""

import contextlib
import re
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from bench.backends import backend_of, fp32_weights
from bench.errors import InputError, WorkloadError
from bench.records.cell import Cell
from bench.runner.first_forward import DERIVED, not_gathered
from bench.runner.forward import Forward

FSDP2_CASTS_COMPLEX = torch.__version__ < "2.13"  # as versions, not as texts
_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
_OTHER_DTYPE = re.compile(r"same dtype|expected scalar type")
_SIZES = re.compile(r"\b(size|shape|matrix)\b")
_NOT_GATHERED = ("mixed torch.Tensor and DTensor", "out of bounds for storage of size 0")


def check_built(model: Any, *, draws: bool) -> None:
    """What every backend needs, and bench itself, which sets hooks on modules and counts parameters.

    Args:
        draws: the values of parameters follow; see `bench.workloads.Workload.draw`.

    Raises:
        WorkloadError: the model lacks it.
    """
    if not isinstance(model, nn.Module):
        raise WorkloadError(
            f"the workload's model is a {type(model).__name__}, not a torch.nn.Module",
            fix="make one module of all that is trained; its forward is the step's",
        )
    for path, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise WorkloadError(
                f"{f'the module {path}' if path else 'the whole model'} of the workload is scripted or traced by"
                " torch.jit, and takes no hooks, with which weights are sharded and steps are watched",
                fix="leave it as it is in Python; train.compile: unit or model compiles it",
            )
        if any(is_lazy(one) for one in (*module._parameters.values(), *module._buffers.values())):
            raise WorkloadError(
                f"the module {path} of the workload's model has no shape yet: {type(module).__name__} gets it from"
                " its first input",
                fix="call the model once at the end of build, such as `model(torch.zeros(1, 16))`, or give its sizes",
            )
    if not draws and (path := next((path for path, one in model.named_parameters() if one.is_meta), None)):
        raise WorkloadError(
            f"the parameter {path} of the workload's model is on torch's meta device, without values",
            fix="build the model on the CPU, or give the workload a draw: see `bench guide workloads`",
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise WorkloadError(
            "the workload's model has no parameter that requires a gradient",
            fix="call `requires_grad_()` on the modules to train",
        )


def check_loss(loss: torch.Tensor) -> None:
    """Raises WorkloadError if there is no gradient of it: torch names neither the loss, nor does DeepSpeed say why."""
    if not loss.requires_grad:
        raise WorkloadError(
            "the workload's loss has no gradient: it depends on no trained parameter",
            fix="compute it with torch from what forward returns, without `detach`, `no_grad` and integers",
        )


@contextlib.contextmanager
def check_grown(model: nn.Module) -> Iterator[None]:
    """Raises WorkloadError if the steps within gave the model a parameter: nothing would train or shard it."""
    before = {name for name, _ in model.named_parameters()}
    yield
    if new := next((name for name, _ in model.named_parameters() if name not in before), None):
        raise WorkloadError(
            f"forward of the workload's model made the parameter {new}, which no optimizer has",
            fix="make it in `__init__`, or call the model once at the end of build",
        )


def refuse_untrainable(cell: Cell, device: torch.device, model: nn.Module) -> None:
    """Name what the backend of the cell cannot take. It is right elsewhere, so it is no mistake of the workload.

    Raises:
        InputError: there is something.
    """
    _refuse_sparse(cell, model)
    for name, parameter in model.named_parameters():
        if why := _unfit(cell, device, parameter):
            raise InputError(f"{cell.backend} cannot take the parameter {name}: it {why}")


def _unfit(cell: Cell, device: torch.device, parameter: nn.Parameter) -> str | None:
    """Why the backend cannot take a parameter, and what to do.

    DeepSpeed begins with a broadcast of each parameter's bytes, `param.data.view(torch.uint8)`, and makes one tensor of
    all that are trained. fully_shard takes contiguous parameters alone, and FSDP1 floating ones. accelerate makes fp32,
    without imaginary parts, of all that FSDP2 trains in mixed precision; before torch 2.13, so does FSDP2 of others.
    """
    family, shape, dtype = backend_of(cell).family, tuple(parameter.shape), str(parameter.dtype).removeprefix("torch.")
    trained, floats = parameter.requires_grad, parameter.is_floating_point()
    if family == "ddp" and floats and parameter.itemsize == 1 and device.type == "cpu":
        return f"is {dtype}, which gloo does not send, as NCCL does on GPUs"
    real_only = {
        "fsdp": True,
        "fsdp2": cell.in_16_bits and (trained or FSDP2_CASTS_COMPLEX),
        "deepspeed": trained,
    }.get(family, False)
    if parameter.is_complex() and real_only:
        return (
            f"is {dtype}; make it a buffer, or, to train it, real: `torch.view_as_complex` in forward makes it complex"
        )
    if family == "fsdp" and not (floats or parameter.is_complex()):
        return f"is {dtype}; make it a buffer"
    if not shape and family not in ("single", "ddp"):
        return "has no dimension; give it one, such as `nn.Parameter(torch.ones(1))`"
    if not parameter.is_contiguous() and (family == "fsdp2" or (family == "deepspeed" and not _has_bytes(parameter))):
        return f"is not contiguous, with the shape {shape}; call `.contiguous()` on its values before `nn.Parameter`"
    return None


def _has_bytes(parameter: nn.Parameter) -> bool:
    try:
        parameter.data.view(torch.uint8)
    except RuntimeError:
        return False
    return True


def _refuse_sparse(cell: Cell, model: nn.Module) -> None:
    """Gradients of embeddings with ``sparse=True``: torch has neither a norm of them nor an Adam of its own for them,
    and sharding libraries cut gradients as dense ones."""
    path = sparse_embedding(model)
    if path is None or backend_of(cell).sharding == "zero0":  # for which DeepSpeed has `sparse_gradients`
        return
    settings = []
    if cell.train.optimizer in ("adamw", "muon"):
        settings += ["train.optimizer: torch.optim:SGD", "train.weight_decay: 0"]
    if cell.train.max_grad_norm is not None:
        settings.append("train.max_grad_norm: null")
    if backend_of(cell).family not in ("single", "ddp"):
        settings = ["backend: ddp or single"]
    if settings:
        raise InputError(
            f"the embedding {path} has sparse=True, and such gradients need {', '.join(settings)}; or leave it out"
        )


def sparse_embedding(model: nn.Module) -> str | None:
    """The path of an embedding whose gradient is sparse."""
    embeddings = ((path, module) for path, module in model.named_modules() if isinstance(module, _EMBEDDINGS))
    return next((path for path, module in embeddings if module.sparse and module.weight.requires_grad), None)


@contextlib.contextmanager
def explained(cell: Cell, model: nn.Module, forward: Forward | None = None) -> Iterator[None]:
    """Says first what is in the model, and what to do, where an error shows neither.

    Args:
        forward: which runs the model.
    """
    try:
        yield
    except (RuntimeError, ValueError, AssertionError) as error:
        if cause := _cause(cell, model, error, derives=forward is not None and forward.derives):
            error.args = (f"{cause}\n{error}",)
        raise


def _cause(cell: Cell, model: nn.Module, error: Exception, *, derives: bool) -> str | None:
    said, family = str(error), backend_of(cell).family
    dtypes_differ = cell.in_16_bits and bool(_OTHER_DTYPE.search(said))
    if "Expected more than 1 value per channel" in said:
        return "BatchNorm needs several samples on each rank: a larger batch, or probe.granularity: 2 in a search"
    if dtypes_differ and (family == "fsdp" or not fp32_weights(cell)):
        when = "while its unit is called" if family == "fsdp" else "here"
        return (
            f"a weight is {cell.computes_in} {when}, without autocast: let forward cast what it makes of integers, such"
            " as `x.to(self.weight.dtype)`, or set launch.mixed_precision=no"
        )
    if backend_of(cell).sharding == "zero3" and derives and _SIZES.search(said):
        return DERIVED
    return _cause_in_fsdp2(cell, model, error, dtypes_differ=dtypes_differ) if family == "fsdp2" else None


def _cause_in_fsdp2(cell: Cell, model: nn.Module, error: Exception, *, dtypes_differ: bool) -> str | None:
    said = str(error)
    if any(words in said for words in _NOT_GATHERED):
        return not_gathered("FSDP2")
    if "uniform original parameter dtype" in said:
        return "FSDP2 trains one dtype in a unit: change those of parameters, or name smaller modules in `units`"
    module = _with_buffers(error.__traceback__) if dtypes_differ else None
    path = next((path for path, one in model.named_modules() if one is module), None)
    return path and (
        f"{path} has fp32 buffers, which FSDP2 does not cast to {cell.computes_in} with its weights; set"
        " launch.mixed_precision=no, or a norm without buffers"
    )


def _with_buffers(raised: TracebackType | None) -> nn.Module | None:
    """The innermost module that ran, or was given to what ran, and has buffers in fp32 of its own."""
    frames = [frame for frame, _ in traceback.walk_tb(raised)]
    modules = (one for frame in reversed(frames) for one in frame.f_locals.values() if isinstance(one, nn.Module))
    return next((one for one in modules if any(b.dtype == torch.float32 for b in one.buffers(recurse=False))), None)
