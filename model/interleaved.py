"""Backbone layer i and expert layer i as one module: the unit of sharding, recomputation and compilation.

Shapes: B batch, S prefix tokens, T actions, D and E the streams' widths, Q = S + T of those present, K keys (the cached
ones and Q), J key/value heads, H head width.
"""

from typing import Self

import torch
from torch import Tensor, nn

from bench.model.attention import attend, rotary_table, rotate
from bench.model.backbone import BackboneLayer
from bench.model.config import Pi07Config
from bench.model.expert import ExpertLayer

KeyValue = tuple[Tensor, Tensor]
"""Rotated keys and values, each (B, J, K, H)."""

LOCAL_BASE, GLOBAL_BASE = 1e4, 1e6  # Gemma 3 (arXiv:2503.19786, section 2), here without windows


class InterleavedLayer(nn.Module):
    """Joint attention of both streams over their keys and the cached keys. Either stream may be absent.

    All computation is in ``forward``: calling a half from outside would bypass the hooks that gather sharded weights.
    """

    def __init__(self, config: Pi07Config, index: int) -> None:
        super().__init__()
        self.attention = config.attention
        self.head_dim = config.head_dim
        self.dropout = config.attention_dropout
        is_global = config.global_every > 0 and (index + 1) % config.global_every == 0
        self.rotary_base = GLOBAL_BASE if is_global else LOCAL_BASE
        self.backbone_layer = BackboneLayer(config)
        self.expert_layer = ExpertLayer(config)
        self.backbone_frozen = config.freeze_backbone
        self.backbone_layer.requires_grad_(not self.backbone_frozen)

    def train(self, mode: bool = True) -> Self:
        """As in `nn.Module`, but a frozen backbone stays in eval mode."""
        super().train(mode)
        self.backbone_layer.train(mode and not self.backbone_frozen)
        return self

    def forward(  # positional, because the hooks of sharded backends handle positional inputs
        self,
        backbone_BSD: Tensor | None,
        expert_BTE: Tensor | None,
        positions_BQ: Tensor,
        mask_BQK: Tensor,
        condition_BE: Tensor | None = None,
        cache: KeyValue | None = None,
    ) -> tuple[Tensor | None, Tensor | None, KeyValue]:
        """Both streams after this layer, and the keys and values that this call added.

        Args:
            backbone_BSD: prefix tokens, or None.
            expert_BTE: action tokens, or None; needs ``condition_BE``.
            positions_BQ: integer positions of the prefix tokens, then of the action tokens.
            mask_BQK: true where a query sees a key; the cache's keys come first.
            condition_BE: the embedded flow time.
            cache: keys and values that an earlier call returned for other tokens.
        """
        # Compute the table here from integers: a sharded unit may get its floating-point inputs in bf16.
        table = rotary_table(positions_BQ, self.head_dim, self.rotary_base)
        parts: list[tuple[Tensor, Tensor, Tensor]] = []
        if backbone_BSD is not None:
            parts.append(self.backbone_layer.project(backbone_BSD))
        if expert_BTE is not None:
            assert condition_BE is not None
            expert_qkv, gate_B1E = self.expert_layer.project(expert_BTE, condition_BE)
            parts.append(expert_qkv)
        q_BNQH, k_BJQH, v_BJQH = (
            part[0] if len(part) == 1 else torch.cat(part, 2) for part in zip(*parts, strict=True)
        )
        q_BNQH, k_BJQH = rotate(q_BNQH, table), rotate(k_BJQH, table)
        k_BJKH, v_BJKH = k_BJQH, v_BJQH
        if cache is not None:
            k_BJKH = torch.cat((cache[0].to(k_BJQH.dtype), k_BJQH), 2)
            v_BJKH = torch.cat((cache[1].to(v_BJQH.dtype), v_BJQH), 2)
        dropout = self.dropout if self.training else 0.0
        attended_BNQH = attend(self.attention, q_BNQH, k_BJKH, v_BJKH, mask_BQK, dropout)

        n_prefix = 0
        if backbone_BSD is not None:
            n_prefix = backbone_BSD.shape[1]
            backbone_BSD = self.backbone_layer.complete(backbone_BSD, attended_BNQH[:, :, :n_prefix])
        if expert_BTE is not None:
            assert condition_BE is not None
            expert_BTE = self.expert_layer.complete(expert_BTE, attended_BNQH[:, :, n_prefix:], gate_B1E, condition_BE)
        return backbone_BSD, expert_BTE, (k_BJQH, v_BJQH)
