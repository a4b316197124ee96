"""The action expert's half of a layer: a Gemma decoder layer whose norms depend on the flow time.

Shapes: B batch, T actions in the chunk, E width, N heads, J key/value heads, H head width.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from bench.model.attention import merge_heads, split_heads
from bench.model.backbone import EPS, GatedMLP, Linear
from bench.model.config import Pi07Config


class Modulation(Linear):
    """From a condition to scale, shift and gate. It starts at zero."""


class AdaRMSNorm(nn.Module):
    """RMS norm whose scale and shift, and the gate of the branch after it, are computed from a condition.

    All three start at zero, so every branch is closed at first (adaLN-zero, arXiv:2212.09748, section 3.2).
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.modulation = Modulation(width, 3 * width)

    def forward(self, x_BTE: Tensor, condition_BE: Tensor) -> tuple[Tensor, Tensor]:
        """The normed input and the gate (B, 1, E)."""
        scale, shift, gate = self.modulation(condition_BE)[:, None].float().chunk(3, -1)
        normed_BTE = F.rms_norm(x_BTE.float(), x_BTE.shape[-1:], eps=EPS) * (1.0 + scale) + shift
        return normed_BTE.to(x_BTE.dtype), gate.to(x_BTE.dtype)


class ExpertLayer(nn.Module):
    """A decoder layer without the attention, which is joint. Only `InterleavedLayer` calls it."""

    def __init__(self, config: Pi07Config) -> None:
        super().__init__()
        width, head_dim = config.expert_hidden, config.head_dim
        self.head_dim = head_dim
        self.pre_attention_norm = AdaRMSNorm(width)
        self.q_proj = Linear(width, config.n_heads * head_dim, bias=False)
        self.k_proj = Linear(width, config.n_kv_heads * head_dim, bias=False)
        self.v_proj = Linear(width, config.n_kv_heads * head_dim, bias=False)
        self.o_proj = Linear(config.n_heads * head_dim, width, bias=False)
        self.pre_mlp_norm = AdaRMSNorm(width)
        self.mlp = GatedMLP(width, config.expert_mlp)

    def project(self, x_BTE: Tensor, condition_BE: Tensor) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
        """Queries (B, N, T, H), keys and values (B, J, T, H) before the rotation; the attention's gate."""
        y_BTE, gate_B1E = self.pre_attention_norm(x_BTE, condition_BE)
        q_BNTH, k_BJTH, v_BJTH = (
            split_heads(projection(y_BTE), self.head_dim) for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        return (q_BNTH, k_BJTH, v_BJTH), gate_B1E

    def complete(self, x_BTE: Tensor, attended_BNTH: Tensor, gate_B1E: Tensor, condition_BE: Tensor) -> Tensor:
        """The layer's output, from its input and the attention's output."""
        x_BTE = x_BTE + self.o_proj(merge_heads(attended_BNTH)) * gate_B1E
        y_BTE, gate_B1E = self.pre_mlp_norm(x_BTE, condition_BE)
        out_BTE: Tensor = x_BTE + self.mlp(y_BTE) * gate_B1E
        return out_BTE
