"""The text backbone's half of a layer, and its modules: a Gemma 3 decoder layer (arXiv:2503.19786), or a layer of the
first Gemma (arXiv:2403.08295), without the extra norms.

Shapes: B batch, S sequence, D width, N heads, J key/value heads, H head width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.model.attention import merge_heads, split_heads
from bench.model.config import Pi07Config

EPS = 1e-6


class Linear(nn.Linear):
    """A linear map that accepts any floating-point input and computes in the dtype of its weight.

    It does not rely on autocast: weights are fp32 or bf16 depending on the backend, and inputs may differ.
    """

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.to(self.weight.dtype), self.weight, self.bias)


class RMSNorm(nn.Module):
    """Root-mean-square norm in fp32. Its weight is stored as the difference from one, as in Gemma."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self.weight.shape, 1.0 + self.weight.float(), EPS).to(x.dtype)


class GatedMLP(nn.Module):
    """GeGLU (arXiv:2002.05202) with the tanh approximation."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = Linear(width, inner, bias=False)
        self.up_proj = Linear(width, inner, bias=False)
        self.down_proj = Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x))
        return out


class BackboneLayer(nn.Module):
    """A decoder layer without the attention, which is joint. Only `InterleavedLayer` calls it."""

    def __init__(self, config: Pi07Config) -> None:
        super().__init__()
        width, head_dim = config.backbone_hidden, config.head_dim
        self.head_dim = head_dim
        self.pre_attention_norm = RMSNorm(width)
        self.q_proj = Linear(width, config.n_heads * head_dim, bias=False)
        self.k_proj = Linear(width, config.n_kv_heads * head_dim, bias=False)
        self.v_proj = Linear(width, config.n_kv_heads * head_dim, bias=False)
        self.q_norm = RMSNorm(head_dim) if config.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(head_dim) if config.qk_norm else nn.Identity()
        self.o_proj = Linear(config.n_heads * head_dim, width, bias=False)
        self.post_attention_norm = RMSNorm(width) if config.post_norms else nn.Identity()
        self.pre_mlp_norm = RMSNorm(width)
        self.mlp = GatedMLP(width, config.backbone_mlp)
        self.post_mlp_norm = RMSNorm(width) if config.post_norms else nn.Identity()

    def project(self, x_BSD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, N, S, H), keys and values (B, J, S, H), before the rotation."""
        y_BSD = self.pre_attention_norm(x_BSD)
        q_BNSH, k_BJSH, v_BJSH = (
            split_heads(projection(y_BSD), self.head_dim) for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        return self.q_norm(q_BNSH), self.k_norm(k_BJSH), v_BJSH

    def complete(self, x_BSD: Tensor, attended_BNSH: Tensor) -> Tensor:
        """The layer's output, from its input and the attention's output."""
        x_BSD = x_BSD + self.post_attention_norm(self.o_proj(merge_heads(attended_BNSH)))
        out_BSD: Tensor = x_BSD + self.post_mlp_norm(self.mlp(self.pre_mlp_norm(x_BSD)))
        return out_BSD
