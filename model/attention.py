"""The attention functions, and the encoding of positions.

Shapes: B batch, Q queries, K keys, N heads, J key/value heads, H head width, S sequence.
"""

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

AttentionFunction = Callable[[Tensor, Tensor, Tensor, Tensor | None, float], Tensor]


def eager(q_BNQH: Tensor, k_BNKH: Tensor, v_BNKH: Tensor, mask_BQK: Tensor | None, dropout: float) -> Tensor:
    """Attention with explicit scores. A query sees a key where ``mask_BQK`` is true; it must see one or more.

    The softmax is in fp32. Scores are products in the dtype of the inputs, as transformers' eager attention computes
    them; on a CPU they are in fp32.
    """
    if q_BNQH.device.type == "cpu":
        q_BNQH, k_BNKH = q_BNQH.float(), k_BNKH.float()
    scores_BNQK = q_BNQH @ k_BNKH.mT * q_BNQH.shape[-1] ** -0.5
    if mask_BQK is not None:
        scores_BNQK = scores_BNQK.masked_fill(~mask_BQK[:, None], torch.finfo(scores_BNQK.dtype).min)
    weights_BNQK = F.dropout(scores_BNQK.softmax(-1, dtype=torch.float32), dropout)
    return torch.matmul(weights_BNQK.to(v_BNKH.dtype), v_BNKH)


def sdpa(q_BNQH: Tensor, k_BNKH: Tensor, v_BNKH: Tensor, mask_BQK: Tensor | None, dropout: float) -> Tensor:
    """torch's fused attention, in the dtype of its inputs. The mask has the same meaning as for `eager`."""
    mask_B1QK = None if mask_BQK is None else mask_BQK[:, None]
    return F.scaled_dot_product_attention(q_BNQH, k_BNKH, v_BNKH, attn_mask=mask_B1QK, dropout_p=dropout)


def flex(q_BNQH: Tensor, k_BNKH: Tensor, v_BNKH: Tensor, mask_BQK: Tensor | None, dropout: float) -> Tensor:
    """torch's FlexAttention: one compiled kernel that skips the blocks that the mask hides. It has no dropout.

    On a CPU, it is not compiled and has no backward pass, so training ends with torch's error.
    """
    assert not dropout, "Pi07Config refuses it"
    block_mask = None if mask_BQK is None else _block_mask(mask_BQK)
    attended_BNQH: Tensor = _flex_attention(q_BNQH.device.type)(q_BNQH, k_BNKH, v_BNKH, block_mask=block_mask)
    return attended_BNQH


@cache
def _flex_attention(device: str) -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention  # slow to import, and rarely used

    function: Callable[..., Any] = flex_attention
    return function if device == "cpu" else torch.compile(function, dynamic=False)


@lru_cache(maxsize=4)  # the layers of one step share their masks
def _block_mask(mask_BQK: Tensor) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    def sees(batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return mask_BQK[batch, query, key]

    n_samples, n_queries, n_keys = mask_BQK.shape
    return create_block_mask(sees, n_samples, None, n_queries, n_keys, device=mask_BQK.device)


ATTENTION: dict[str, AttentionFunction] = {"eager": eager, "sdpa": sdpa, "flex": flex}
"""Looked up at every call, so that a function can be replaced; no module keeps a reference."""


def attend(
    name: str,
    q_BNQH: Tensor,
    k_BJKH: Tensor,
    v_BJKH: Tensor,
    mask_BQK: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Attention with the function ``name``, scaled by H**-0.5. J divides N; ``dropout`` is a share of the weights."""
    # Repeat explicitly: with a mask on CUDA, only torch's unfused kernel accepts fewer key heads than query heads.
    groups = q_BNQH.shape[1] // k_BJKH.shape[1]
    if groups > 1:
        k_BJKH, v_BJKH = k_BJKH.repeat_interleave(groups, 1), v_BJKH.repeat_interleave(groups, 1)
    return ATTENTION[name](q_BNQH, k_BJKH, v_BJKH, mask_BQK, dropout)


def split_heads(x_BSD: Tensor, head_dim: int) -> Tensor:
    """(B, S, N·H) to (B, N, S, H)."""
    return x_BSD.view(*x_BSD.shape[:2], -1, head_dim).transpose(1, 2)


def merge_heads(x_BNSH: Tensor) -> Tensor:
    """(B, N, S, H) to (B, S, N·H)."""
    return x_BNSH.transpose(1, 2).flatten(2)


def rotary_table(positions_BS: Tensor, head_dim: int, base: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines (B, 1, S, H/2) in fp32 from integer positions (RoFormer, arXiv:2104.09864, section 3.2.2)."""
    steps = torch.arange(0, head_dim, 2, device=positions_BS.device, dtype=torch.float32) / head_dim
    angles = positions_BS[:, None, :, None].float() * base**-steps
    return angles.cos(), angles.sin()


def rotate(x_BNSH: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate each pair (x[h], x[h + H/2]) by the angle of its position."""
    cos, sin = (part.to(x_BNSH.dtype) for part in table)
    first, second = x_BNSH.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def sinusoid(values: Tensor, width: int, min_period: float, max_period: float) -> Tensor:
    """Sines, then cosines, of fp32 ``values`` at geometrically spaced periods; the last dimension is ``width``."""
    fraction = torch.linspace(0.0, 1.0, width // 2, device=values.device, dtype=torch.float32)
    periods = min_period * (max_period / min_period) ** fraction
    angles = values.float()[..., None] * (2 * torch.pi / periods)
    return torch.cat((angles.sin(), angles.cos()), -1)
