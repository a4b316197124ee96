"""A model as people bring it, with what accelerate looks for in one: its config and the classes not to split."""

from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

WIDTH = 16


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.mix(self.norm(x)).relu()
        return out


class Blocks(nn.Module):
    _no_split_modules = ("Block",)

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.config = SimpleNamespace(hidden_size=width)
        self.first = nn.Linear(width, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.last = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.last(x)
        return out


class Bare(Blocks):
    """Without either."""

    _no_split_modules = ()

    def __init__(self) -> None:
        super().__init__()
        del self.config


def samples() -> Dataset[tuple[Tensor, ...]]:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(64, WIDTH, generator=draw)
    return TensorDataset(x, x.flip(1))


def blocks() -> tuple[nn.Module, Dataset[tuple[Tensor, ...]], nn.Module]:
    return Blocks(), samples(), nn.MSELoss()


def bare() -> tuple[nn.Module, Dataset[tuple[Tensor, ...]], nn.Module]:
    return Bare(), samples(), nn.MSELoss()
