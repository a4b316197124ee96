"""The order of the prefix, who sees whom in it, and where each token stands.

Shapes: B batch, S prefix tokens, C of them before the discrete actions, T actions, D width.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

# The benchmark has no tokenizer: a fixed text is a run of reserved ids, as many as its words need.
STATE_TEXT = range(2, 4)  # "State: "
STATE_END = range(4, 5)  # ":\n"
ACTION_TEXT = range(5, 7)  # "Action: "


@dataclass(frozen=True)
class Block:
    """A stretch of the prefix."""

    x_BSD: Tensor
    is_real_BS: Tensor
    """False for padding."""
    starts_S: Tensor
    """True where a token starts a new attention block, and so is hidden from all before it."""

    @classmethod
    def text(cls, x_BSD: Tensor, is_real_BS: Tensor | None = None) -> Self:
        """Causal, token by token."""
        return cls(x_BSD, _real(x_BSD, is_real_BS), torch.ones(x_BSD.shape[1], dtype=torch.bool, device=x_BSD.device))

    @classmethod
    def joint(cls, x_BSD: Tensor, is_real_BS: Tensor | None = None) -> Self:
        """All tokens see each other."""
        index_S = torch.arange(x_BSD.shape[1], device=x_BSD.device)
        return cls(x_BSD, _real(x_BSD, is_real_BS), index_S == 0)


@dataclass(frozen=True)
class Prefix:
    """The blocks put together, as the layers take them."""

    x_BSD: Tensor
    is_real_BS: Tensor
    positions_BS: Tensor
    """Counts real tokens only, so that padding shifts nothing."""
    mask_BSS: Tensor
    """True where a query (row) sees a key (column)."""


def assemble(blocks: list[Block]) -> Prefix:
    """A query sees a key when its block is not the earlier one and both are real; padding sees itself alone."""
    is_real_BS = torch.cat([block.is_real_BS for block in blocks], 1)
    block_S = torch.cat([block.starts_S for block in blocks]).cumsum(0)
    both_real_BSS = is_real_BS[:, :, None] & is_real_BS[:, None]
    own_SS = torch.eye(len(block_S), dtype=torch.bool, device=block_S.device)
    return Prefix(
        x_BSD=torch.cat([block.x_BSD for block in blocks], 1),
        is_real_BS=is_real_BS,
        positions_BS=is_real_BS.cumsum(1) - 1,
        mask_BSS=(block_S[:, None] >= block_S) & both_real_BSS | own_SS,
    )


def suffix_layout(context_is_real_BC: Tensor, horizon: int) -> tuple[Tensor, Tensor]:
    """Positions (B, T) and mask (B, T, C + T) of the action chunk behind a cached context; it sees all of itself."""
    step_T = torch.arange(horizon, device=context_is_real_BC.device)
    positions_BT = context_is_real_BC.sum(1, keepdim=True) + step_T
    context_BTC = context_is_real_BC[:, None].expand(-1, horizon, -1)
    return positions_BT, torch.cat((context_BTC, torch.ones_like(context_BTC[..., :1]).expand(-1, -1, horizon)), 2)


def fixed_text(ids: range, batch: int, device: torch.device) -> Tensor:
    """(B, len(ids)) token ids, made on the device: copying them there would wait for it."""
    return torch.arange(ids.start, ids.stop, device=device).expand(batch, -1)


def _real(x_BSD: Tensor, is_real_BS: Tensor | None) -> Tensor:
    return torch.ones(x_BSD.shape[:2], dtype=torch.bool, device=x_BSD.device) if is_real_BS is None else is_real_BS
