"""A frozen transformer with low-rank adapters (Hu et al. 2021, arXiv:2106.09685), and its plain trained twin."""

import torch
from torch import Tensor, nn


class Adapted(nn.Module):
    """A frozen linear layer plus a trained product of two thin matrices."""

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(False)
        self.down, self.up = nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        y_BTD: Tensor = self.base(x_BTD) + self.up(self.down(x_BTD))
        return y_BTD


class Block(nn.Module):
    """Attention and a feed-forward network, each before a residual sum."""

    def __init__(self, width: int, heads: int, rank: int) -> None:
        super().__init__()
        layer = (lambda inputs, outputs: Adapted(inputs, outputs, rank)) if rank else nn.Linear
        self.heads = heads
        self.before, self.between = (nn.LayerNorm(width).requires_grad_(not rank) for _ in range(2))
        self.qkv, self.out = layer(width, 3 * width), layer(width, width)
        self.widen, self.narrow = layer(width, 4 * width), layer(4 * width, width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        q, k, v = self.qkv(self.before(x_BTD)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_BTD = x_BTD + self.out(attended.transpose(1, 2).flatten(-2))
        y_BTD: Tensor = x_BTD + self.narrow(nn.functional.gelu(self.widen(self.between(x_BTD))))
        return y_BTD


class Model(nn.Module):
    def __init__(self, width: int, layers: int, vocabulary: int, rank: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width).requires_grad_(not rank)
        self.blocks = nn.ModuleList(Block(width, width // 64, rank) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary).requires_grad_(not rank)

    def forward(self, tokens_BT: Tensor) -> dict[str, Tensor]:
        x_BTD = self.embed(tokens_BT)
        for block in self.blocks:
            x_BTD = block(x_BTD)
        logits = self.head(x_BTD[:, :-1]).float().flatten(0, 1)
        return {"loss": nn.functional.cross_entropy(logits, tokens_BT[:, 1:].flatten())}


def transformer(
    width: int = 256, layers: int = 4, vocabulary: int = 4096, seq_len: int = 128, rank: int = 8
) -> tuple[Model, Tensor]:
    """``rank`` 0: without adapters, all trained."""
    samples = torch.randint(vocabulary, (256, seq_len))
    return Model(width, layers, vocabulary, rank), samples
