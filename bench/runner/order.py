"""For which modules and parameters a rank communicates, in order. Ranks that use different modules of equal shape issue
collectives that look the same, and mix the weights or the gradients of these modules without an error."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.utils._pytree import tree_leaves

from bench.audit.collectives import Purpose, Use
from bench.runner.setup import Job
from bench.runner.watched import in_backward

_WRAPPERS = re.compile(r"^module\.|\b(_fsdp_wrapped_module|_checkpoint_wrapped_module|_orig_mod)\b\.?")


class Order:
    """What this rank used so far.

    Recorded is what decides about collectives: with FSDP and ZeRO-3, the modules whose weights are gathered; with FSDP2
    and ZeRO, the parameters that have a gradient to reduce. DDP and FSDP1 reduce all of a bucket or a unit, whichever
    of its parameters a rank used.
    """

    def __init__(self) -> None:
        self.uses: list[Use] = []
        self.step = -1
        self._unsorted: list[Use] = []

    def next_step(self) -> None:
        """The next training step begins."""
        self.end_step()
        self.step += 1

    def end_step(self) -> None:
        """Add, by name, what does not depend on the order within the step."""
        self.uses += sorted(self._unsorted, key=lambda use: use.name)
        self._unsorted.clear()

    def add(self, purpose: Purpose, name: str, *, in_order: bool = True) -> None:
        """The rank uses the module or parameter ``name`` now."""
        (self.uses if in_order else self._unsorted).append(Use(step=self.step, purpose=purpose, name=name))


class _Gathered(NamedTuple):
    """A module whose weights are gathered when it runs."""

    name: str
    module: nn.Module


@contextmanager
def watched(job: Job, order: Order) -> Iterator[None]:
    """Record in ``order`` what the steps of ``job`` use."""
    hooks: list[Any] = []
    # ZeRO-1 and ZeRO-3 sort them.
    engine: Any = job.model
    as_they_arrive = job.family != "deepspeed" or engine.zero_optimization_stage() == 2
    for name, module in _gathered(job.model) if job.units is not None else ():  # a hook would split a compiled graph
        hooks.append(module.register_forward_pre_hook(lambda *_, name=name: order.add("forward", name)))
        hooks.append(module.register_forward_hook(lambda *given, name=name: _on_backward(order, name, given[-1])))
    for name, parameter in job.model.named_parameters() if job.family in ("fsdp2", "deepspeed") else ():
        if parameter.requires_grad:
            hook = _on_gradient(order, _plain(name), in_order=as_they_arrive)
            accumulated: Any = parameter.register_post_accumulate_grad_hook
            hooks.append(accumulated(hook))
    try:
        yield
    finally:
        order.end_step()
        for hook in hooks:
            hook.remove()


def _gathered(model: nn.Module) -> Iterator[_Gathered]:
    for name, module in model.named_modules():
        if isinstance(module, FSDPModule | FullyShardedDataParallel) or any(
            hasattr(parameter, "ds_id") for parameter in module.parameters(recurse=False)
        ):
            yield _Gathered(_plain(name), module)


def _on_backward(order: Order, name: str, output: Any) -> None:
    """Record when backward reaches ``output``, which a module returned. Not where backward itself runs the module
    again."""
    if in_backward():
        return
    tensors = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.requires_grad]
    for tensor in tensors:
        tensor.register_hook(lambda _: order.add("backward", name))  # type: ignore[no-untyped-call]


def _on_gradient(order: Order, name: str, *, in_order: bool) -> Any:
    return lambda _: order.add("gradient", name, in_order=in_order)


def _plain(name: str) -> str:
    """The name in the workload's own model."""
    return _WRAPPERS.sub("", name).rstrip(".") or "the model"
