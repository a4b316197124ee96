"""FLOPs of one sample of a model of transformers, counted by torch on a model without data."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from bench.workloads.huggingface.description import Description
from bench.workloads.huggingface.model import build_model
from bench.workloads.huggingface.options import Options
from bench.workloads.huggingface.samples import Samples, collate

_PRODUCTS = ("mm", "conv", "attention", "lstm", "gru")
"""Parts of the names of operations that multiply matrices."""


@dataclass(frozen=True)
class Flops:
    """Of one sample; a multiply-add counts as two."""

    step: int
    recomputed: int


def flops_per_sample(description: Description, options: Options) -> Flops | None:
    """The FLOPs of forward, backward and recomputation, of experts for the tokens that are routed to them.

    None where torch cannot run the model without data, or runs an operation for which it has no formula.
    """
    try:
        step = _count(description, options)
        once = _count(description, options.model_copy(update={"grad_ckpt": False})) if options.grad_ckpt else step
    except Exception:  # values that only data decides, or kernels that refuse tensors without data: any class of error
        return None
    return None if step is None or once is None else Flops(step, step - once)


def flops_by_length(description: Description, options: Options, shortest: int, longest: int) -> Callable[[int], Any]:
    """`flops_per_sample` of a sample of any length between these. They are on a parabola, as attention takes the square
    of a length. None where those of a fourth length are not on it."""
    third = (longest - shortest) // 3
    lengths = dict.fromkeys((shortest, shortest + third, longest, longest - third))
    at = {length: flops_per_sample(description, options.at(length)) for length in lengths}
    points = [(length, found) for length, found in at.items() if found]
    if len(points) == 4 and _on_parabola(points[:3], points[3][0]) == points[3][1]:
        return lambda length: at.get(length) or _on_parabola(points[:3], length)
    return at.get


def _on_parabola(points: Sequence[tuple[int, Flops]], at: int) -> Flops:
    """Lagrange's, through three points."""
    step = recomputed = Fraction()
    for length, flops in points:
        weight = Fraction(1)
        for other, _ in points:
            weight *= Fraction(at - other, length - other) if other != length else 1
        step, recomputed = step + weight * flops.step, recomputed + weight * flops.recomputed
    return Flops(round(step), round(recomputed))


class _Unknown(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notices products of matrices that `FlopCounterMode` would leave out."""

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "overloadpacket", func)
        self.seen |= name not in flop_registry and any(part in name.__name__ for part in _PRODUCTS)
        return func(*args, **(kwargs or {}))


def _count(description: Description, options: Options) -> int | None:
    batch = collate([Samples(description, options, seed=0)[0]])
    # transformers reads no values of fake tensors; on the device meta, attention becomes plain products.
    with torch.random.fork_rng(devices=[]), FakeTensorMode(allow_non_fake_inputs=True), torch.device("meta"):
        model = build_model(description, options)
        model.set_experts_implementation("batched_mm")  # a product for each token and each of its experts
        batch = tree_map(lambda x: torch.empty(x.shape, dtype=x.dtype) if isinstance(x, Tensor) else x, batch)
        with _Unknown() as unknown, FlopCounterMode(display=False) as counter:
            model(**batch).loss.backward()
    return None if unknown.seen else int(counter.get_total_flops()) - _idle(model, counter.get_flop_counts())


def _idle(model: nn.Module, counts: Mapping[str, Mapping[Any, int]]) -> int:
    """What experts compute for tokens that are not routed to them, where a model has no other implementation of its
    experts than products with all of them, such as Llama 4."""
    idle = 0
    for name, layer in model.named_modules():
        experts = getattr(layer, "experts", None)
        weights = [*experts.parameters(recurse=False)] if isinstance(experts, nn.Module) else []
        if not weights or hasattr(experts, "is_concatenated") or any(one.ndim != 3 for one in weights):
            continue
        counted = sum(counts[f"{type(model).__name__}.{name}.experts"].values())
        idle += counted - counted * layer.top_k // len(weights[0])
    return idle
