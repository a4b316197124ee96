"""The layout of the prefix: the attention mask and the position of each token.

Shapes: B batch, S prefix tokens, C of them before the discrete actions, T actions, D width.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class Block:
    """A part of the prefix."""

    x: Tensor
    """(B, S, D) embeddings, or (B, S) token ids to embed."""
    is_real_BS: Tensor
    """False for padding and for parts that a sample lacks."""
    starts_S: Tensor
    """True where a token starts a new attention block, which earlier tokens cannot see."""
    name: str = ""

    @classmethod
    def text(cls, x: Tensor, is_real_BS: Tensor | None = None, name: str = "") -> Self:
        """A block with causal attention, token by token."""
        return cls(x, _real(x, is_real_BS), torch.ones(x.shape[1], dtype=torch.bool, device=x.device), name)

    @classmethod
    def joint(cls, x: Tensor, is_real_BS: Tensor | None = None) -> Self:
        """A block in which all tokens see each other."""
        index_S = torch.arange(x.shape[1], device=x.device)
        return cls(x, _real(x, is_real_BS), index_S == 0)


@dataclass(frozen=True)
class Prefix:
    """The assembled blocks, as input of the layers."""

    x_BSD: Tensor
    is_real_BS: Tensor
    positions_BS: Tensor
    """Positions count only real tokens, so padding does not shift them."""
    mask_BSS: Tensor
    """True where a query (row) sees a key (column)."""
    spans: Mapping[str, slice]
    """The range of each named block."""


def look_up(blocks: list[Block], embed: Callable[[Tensor], Tensor]) -> list[Block]:
    """The blocks with all token ids embedded, in a single lookup."""
    texts = [block.x for block in blocks if block.x.dim() == 2]
    embedded = iter(torch.split(embed(torch.cat(texts, 1)), [text.shape[1] for text in texts], 1))
    return [replace(block, x=next(embedded)) if block.x.dim() == 2 else block for block in blocks]


def assemble(blocks: list[Block]) -> Prefix:
    """A query sees a key of its own or an earlier block if both are real; padding sees only itself."""
    is_real_BS = torch.cat([block.is_real_BS for block in blocks], 1)
    block_S = torch.cat([block.starts_S for block in blocks]).cumsum(0)
    both_real_BSS = is_real_BS[:, :, None] & is_real_BS[:, None]
    self_SS = torch.eye(len(block_S), dtype=torch.bool, device=block_S.device)
    spans, end = {}, 0
    for block in blocks:
        start, end = end, end + block.x.shape[1]
        spans[block.name] = slice(start, end)
    return Prefix(
        x_BSD=torch.cat([block.x for block in blocks], 1),
        is_real_BS=is_real_BS,
        positions_BS=is_real_BS.cumsum(1) - 1,
        mask_BSS=(block_S[:, None] >= block_S) & both_real_BSS | self_SS,
        spans=spans,
    )


def suffix_layout(context_is_real_BC: Tensor, horizon: int) -> tuple[Tensor, Tensor]:
    """Positions (B, T) and mask (B, T, C + T) of the action chunk after a cached context. Its tokens see each other."""
    step_T = torch.arange(horizon, device=context_is_real_BC.device)
    positions_BT = context_is_real_BC.sum(1, keepdim=True) + step_T
    context_BTC = context_is_real_BC[:, None].expand(-1, horizon, -1)
    return positions_BT, torch.cat((context_BTC, torch.ones_like(context_BTC[..., :1]).expand(-1, -1, horizon)), 2)


def fixed_text(ids: range, batch: int, device: torch.device) -> Tensor:
    """(B, len(ids)) token ids, created on the device, because a copy would synchronize with it."""
    return torch.arange(ids.start, ids.stop, device=device).expand(batch, -1)


def _real(x: Tensor, is_real_BS: Tensor | None) -> Tensor:
    return torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if is_real_BS is None else is_real_BS
