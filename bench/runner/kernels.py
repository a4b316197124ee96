"""Makes the meta device run the operators that another device would: tensors say that they are on it, and attention and
norms keep what its fused kernels keep."""

import sys
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from bench.records.base import Device
from bench.runner.autocast import cast

ATEN = torch.ops.aten
_DEVICE_OF = Tensor.device.__get__


class Kernels(TorchFunctionMode):
    """Stands for ``device`` while a model runs on meta.

    Args:
        cudnn: attention tries cuDNN's kernel first; see `bench.records.devices.prefers_cudnn`.
    """

    def __init__(self, device: Device, *, cudnn: bool = False) -> None:
        super().__init__()
        self._device, self._cudnn = torch.device(device), cudnn
        self.assumed = 0
        """How often the model asked whether a tensor is true. Such as transformers ask whether all tokens are real,
        which they are in bench's samples: the answer is yes."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func == _DEVICE_OF:  # each look-up makes another object
            asks = sys._getframe(1).f_globals.get("__name__", "")
            return func(*args) if asks.startswith("torch.") else self._device  # checkpointing must see what is
        if func is functional.scaled_dot_product_attention:
            if torch.is_autocast_enabled("cpu"):
                args, kwargs = cast("scaled_dot_product_attention", args, kwargs)
            return _attention(self._device.type, self._cudnn, *args, **kwargs)
        if func is functional.rms_norm and self._device.type == "cuda":
            return _rms_norm(*args, **kwargs)
        if func is Tensor.__bool__ and args[0].is_meta:
            self.assumed += 1
            return True
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": "meta"}
        if func in (Tensor.to, Tensor.cpu, Tensor.cuda):
            args = tuple("meta" if isinstance(one, torch.device) or one in ("cpu", "cuda") else one for one in args)
        return func(*args, **kwargs)


def _attention(
    device: str,
    cudnn: bool,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """As torch chooses between its kernels (aten/src/ATen/native/transformers: ``sdp_utils_cpp.cpp`` and
    ``cuda/sdp_utils.cpp``): on CUDA, cuDNN's where it is the first, else flash, which takes no mask, else the
    memory-efficient one. On a CPU, flash, which has no dropout. A mask of booleans becomes one of numbers."""
    if enable_gqa:
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    bias = attn_mask
    if bias is not None and bias.dtype == torch.bool:
        bias = torch.zeros_like(bias, dtype=query.dtype).masked_fill_(bias.logical_not(), float("-inf"))
    if device == "cpu":
        learns = bias is not None and bias.requires_grad
        if dropout_p or learns or query.shape[-1] != value.shape[-1]:
            return _math(query, key, value, bias, dropout_p, is_causal, scale)
        out: Tensor = ATEN._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, is_causal, attn_mask=bias, scale=scale
        )[0]
        return out
    if cudnn and _suits_cudnn(query, key, value, dropout_p):
        found: Tensor = ATEN._scaled_dot_product_cudnn_attention(
            query, key, value, bias, query.requires_grad, dropout_p, is_causal, False, scale=scale
        )[0]
        return found
    if bias is None and query.dtype != torch.float32:
        return _flash(query, key, value, dropout_p, is_causal, scale)
    if bias is not None:
        keys = bias.shape[-1]
        if keys % 16:  # the kernel wants aligned rows: `pad_bias`
            bias = functional.pad(bias, (0, 16 - keys % 16))[..., :keys]
        bias = bias.expand(*query.shape[:-1], keys)
    result: Tensor = ATEN._scaled_dot_product_efficient_attention(
        query, key, value, bias, True, dropout_p, is_causal, scale=scale
    )[0]
    return result


CUDNN_WIDTH = 128
"""Of heads, at most; 256 on Hopper since cuDNN 9.10."""


def _suits_cudnn(query: Tensor, key: Tensor, value: Tensor, dropout_p: float) -> bool:
    """`check_cudnn_tensor_shapes`, for the version of cuDNN that torch 2.11 and later come with."""
    widths, (queries, keys) = (query.shape[-1], value.shape[-1]), (query.shape[-2], key.shape[-2])
    fits = all(width % 8 == 0 and width <= CUDNN_WIDTH for width in widths)
    return query.dtype != torch.float32 and fits and keys > 1 and not (queries == 1 and dropout_p)


def _flash(query: Tensor, key: Tensor, value: Tensor, dropout_p: float, is_causal: bool, scale: float | None) -> Tensor:
    width = query.shape[-1]
    if width % 8:  # `pad_last_dim`
        query, key, value = (functional.pad(one, (0, 8 - width % 8)) for one in (query, key, value))
        scale = width**-0.5 if scale is None else scale
    out: Tensor = ATEN._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, False, scale=scale)[
        0
    ]
    return out[..., :width]


def _math(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> Tensor:
    out: Tensor = ATEN._scaled_dot_product_attention_math(query, key, value, bias, dropout_p, is_causal, scale=scale)[0]
    return out


def _rms_norm(
    input: Tensor,  # noqa: A002  torch's names
    normalized_shape: Any,  # noqa: ARG001
    weight: Tensor | None = None,
    eps: float | None = None,  # noqa: ARG001
) -> Tensor:
    out: Tensor = _RmsNorm.apply(input, weight)  # type: ignore[no-untyped-call]
    return out


class _RmsNorm(torch.autograd.Function):
    """What CUDA's fused kernel keeps: its input and one number a row."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor | None) -> Tensor:
        context.save_for_backward(x, weight, torch.empty_like(x[..., :1], dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(context: Any, _gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        x, weight, _ = context.saved_tensors
        return torch.empty_like(x), None if weight is None else torch.empty_like(weight)
