"""What one step computes: dtypes of its matrix products, kernels of attention, and the implementation of Adam."""

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Self

from torch import Tensor, ops
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

_aten = ops.aten
_FLOPS: dict[Any, Callable[..., int]] = {
    **flop_registry,
    # The signatures begin like those of the CUDA kernels, and torch's table has only these.
    _aten._scaled_dot_product_flash_attention_for_cpu: flop_registry[_aten._scaled_dot_product_flash_attention],
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: flop_registry[
        _aten._scaled_dot_product_flash_attention_backward
    ],
}
_KERNELS = {
    "_scaled_dot_product_flash_attention": "flash",
    "_scaled_dot_product_flash_attention_for_cpu": "flash",
    "_scaled_dot_product_cudnn_attention": "cuDNN",
    "_scaled_dot_product_efficient_attention": "efficient",
    "_safe_softmax": "math",  # of all attention, only `_scaled_dot_product_attention_math` has it
}
"""The kernels between which torch's `scaled_dot_product_attention` chooses, by an operation that only it has."""
_ADAMS = {
    "_fused_adamw_": "fused",
    "_fused_adam_": "fused",
    "_foreach_addcdiv_": "foreach",
    "addcdiv_": "loop",
}
"""torch's implementations of Adam, by an operation that only one of them has."""


@dataclass(frozen=True)
class Computed:
    """Of one step of this rank; empty until it was watched."""

    flops: Counter[str] = field(default_factory=Counter)
    """FLOPs of matrix products, convolutions and attention kernels, forward and backward, by dtype of their inputs."""
    attention: Counter[str] = field(default_factory=Counter)
    """Calls of torch's attention, by its kernel and whether it had a mask."""
    adam: Counter[str] = field(default_factory=Counter)
    """Calls of the implementation of Adam with which torch stepped."""
    reduced: Counter[str] = field(default_factory=Counter)
    """Scalars that entered a reduction between ranks, by dtype."""

    @property
    def matmul_shares(self) -> dict[str, float] | None:
        """Shares of the FLOPs by dtype, the largest first; None if none were seen."""
        total = sum(self.flops.values())
        return {dtype: flops / total for dtype, flops in self.flops.most_common()} if total else None

    @property
    def reduction_dtype(self) -> str | None:
        """The dtype of most scalars: norms and flags are reduced, too. None if nothing was seen."""
        return next((dtype for dtype, _ in self.reduced.most_common(1)), None)


class Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the FLOPs of every matrix product, and calls of attention and of Adam.

    autograd passes the mode on to the threads of backward. Products of an optimizer do not count: Muon's are bf16 in
    any regime. What the model compiles itself, such as FlexAttention, stays compiled: its calls of matrix products are
    seen, its generated kernels are not.
    """

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __init__(self, computed: Computed, *, told: bool = False) -> None:
        """``told``: `stepping` is called where an optimizer begins and ends its step; else hooks do that."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._flops, self._attention, self._adam = computed.flops, computed.attention, computed.adam
        self._told = told
        self._optimizers = 0
        """How many are stepping: one may step others."""

    def __enter__(self) -> Self:
        self._hooks = ExitStack()
        if not self._told:
            self._hooks.enter_context(register_optimizer_step_pre_hook(lambda *_: self.stepping(1)))
            self._hooks.enter_context(register_optimizer_step_post_hook(lambda *_: self.stepping(-1)))
        return super().__enter__()  # type: ignore[no-any-return,no-untyped-call]

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._hooks.close()

    def stepping(self, change: int) -> None:
        """An optimizer begins its step, or ends it: 1 or -1."""
        self._optimizers += change

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        packet = getattr(func, "_overloadpacket", None)
        name = getattr(packet, "__name__", "")
        if self._optimizers and (implementation := _ADAMS.get(name)):
            self._adam[implementation] += 1
        if kernel := _KERNELS.get(name):
            self._attention[kernel + (" with a mask" if _masked(func, args, kwargs or {}) else "")] += 1
        count = _FLOPS.get(packet)
        if count is not None and not self._optimizers:
            dtype = next(value.dtype for value in args if isinstance(value, Tensor))
            with suppress(AssertionError):  # torch's formulas know fewer shapes than its kernels
                self._flops[str(dtype).removeprefix("torch.")] += count(*args, **(kwargs or {}), out_val=result)
        return result


def _masked(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether this call of an attention kernel has a mask. That of math is added to the scores before."""
    names = (argument.name for argument in func._schema.arguments)
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    return given.get("attn_mask") is not None or given.get("attn_bias") is not None
