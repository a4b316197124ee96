"""Makes the meta device cast as autocast does on another device: torch has no autocast for meta.

Kernels are registered under a key of autocast that no operator has a kernel for. So they also see what operators call
inside, as autocast's own do. Which operator casts to what: aten/src/ATen/autocast_mode.{h,cpp} of torch 2.13.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.library import Library
from torch.utils._pytree import tree_leaves, tree_map

from bench.records.base import Device

_KEY = "AutocastIPU"
_LOW = frozenset(
    """
    _addmm_activation _convolution _native_multi_head_attention _scaled_dot_product_flash_attention
    _thnn_fused_gru_cell _thnn_fused_lstm_cell addbmm addmm addmv addr baddbmm bmm chain_matmul conv1d conv2d
    conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d convolution einsum gru_cell
    linalg_multi_dot linalg_vecdot linear lstm_cell matmul mkldnn_rnn_layer mm mv prelu rnn_relu_cell
    rnn_tanh_cell scaled_dot_product_attention
    """.split()
)
_WIDEST = frozenset(
    """
    addcdiv addcmul atan2 bilinear cat cross dot grid_sampler index_copy index_put scatter_add stack tensordot
    vdot
    """.split()
)
_ON_CPU_TOO = frozenset({"grid_sampler"})
"""Of these, a CPU casts to fp32."""
_OUTPUT = frozenset(
    ["cumprod", "cumsum", "linalg_matrix_norm", "linalg_vector_norm", "log_softmax", "prod", "softmax", "sum"]
)
"""On CUDA, fp32 is the dtype of the output alone."""


@contextmanager
def autocast_on_meta(device: Device) -> Iterator[None]:
    """While open, operators on meta tensors follow `torch.autocast("cpu")` by the rules of ``device``."""
    _register()
    with torch._C._IncludeDispatchKeyGuard(getattr(torch._C.DispatchKey, _KEY)):
        torch.set_autocast_enabled("ipu", True)  # the keys of autocast are excluded otherwise
        _device.append(device)
        try:
            yield
        finally:
            _device.pop()
            _copies.clear()
            torch.set_autocast_enabled("ipu", False)


def forget_copies() -> None:
    """What leaving autocast does: copies of weights that no operator keeps for backward are freed."""
    _copies.clear()


_device: list[Device] = []
_copies: dict[int, tuple[Tensor, Tensor]] = {}
"""By weight: autocast keeps its copy for as long as it is on."""


@cache
def _cast_by(device: str) -> frozenset[str]:
    """The operators that autocast of ``device`` casts for."""
    names = torch._C._dispatch_get_registrations_for_dispatch_key(f"Autocast{device.upper()}")
    return frozenset(name.removeprefix("aten::") for name in names)


@cache
def _register() -> list[Library]:
    rest, kernels = Library("_", "IMPL"), Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    rest.fallback(torch.library.fallthrough_kernel, _KEY)  # type: ignore[no-untyped-call]
    for name in _cast_by("cpu") | _cast_by("cuda"):
        packet, _, overload = name.partition(".")
        operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
        kernels.impl(operator, _kernel(operator, name), _KEY)  # type: ignore[no-untyped-call]
    return [rest, kernels]


def _kernel(operator: Any, name: str) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, _KEY))):
            if not torch.is_autocast_enabled("cpu"):
                _copies.clear()  # autocast has been left, as after what checkpointing repeats
            elif name in _cast_by(_device[-1]):
                args, kwargs = cast(name.partition(".")[0], args, kwargs)
            return operator(*args, **kwargs)

    return run


def cast(name: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments of an operator as autocast gives them to it."""
    device = _device[-1]
    if name in _LOW:
        return tree_map(_lower, (args, kwargs))  # type: ignore[no-any-return]
    if name in _WIDEST and not (device == "cpu" and name in _ON_CPU_TOO):
        wide = any(isinstance(one, Tensor) and one.dtype == torch.float32 for one in tree_leaves((args, kwargs)))
        return tree_map(_raise, (args, kwargs)) if wide else (args, kwargs)
    if device == "cuda" and name in _OUTPUT:
        low = args and _is_low(args[0])
        asked = any(isinstance(one, torch.dtype) for one in (*args, *kwargs.values()))
        return args, {**kwargs, "dtype": torch.float32} if low and not asked else kwargs
    return tree_map(_raise, (args, kwargs))  # type: ignore[no-any-return]


def _lower(value: Any) -> Any:
    if not (isinstance(value, Tensor) and value.is_floating_point()) or value.dtype in (torch.float64, torch.bfloat16):
        return value
    if not (value.is_leaf and value.requires_grad and not value._is_view()):
        return value.to(torch.bfloat16)
    if id(value) not in _copies:
        _copies[id(value)] = value, value.to(torch.bfloat16)
    return _copies[id(value)][1]


def _raise(value: Any) -> Any:
    return value.to(torch.float32) if _is_low(value) else value


def _is_low(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.itemsize < 4
