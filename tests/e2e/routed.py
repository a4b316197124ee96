"""A model whose samples choose which of two equal experts they go through. Ranks may choose differently."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import nn

WIDTH = 8


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + self.inner(x).tanh()


class Layer(nn.Module):
    """Runs the experts that its samples ask for: the first sample's first."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList([Expert(), Expert()])

    def forward(self, x, expert):
        routed = torch.zeros_like(x)
        for index in dict.fromkeys(expert.tolist()):
            mask = (expert == index)[:, None]
            routed = routed + mask * self.experts[index](x)
        return routed


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = Layer()
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x, expert):
        return self.head(self.layer(x, expert)).float().square().mean()


@dataclass
class Routed:
    units: ClassVar = ("Expert",)

    route: Literal["together", "apart", "turned"] = "together"
    """Ranks of batch 1 or 2 choose the same expert, each another, or both in another order."""

    def build(self):
        return Model()

    def dataset(self):
        chosen = {"together": "0011", "apart": "0101", "turned": "0110"}[self.route]
        return [{"x": torch.randn(WIDTH), "expert": torch.tensor(int(expert))} for expert in chosen]


class RoutedLayers(Routed):
    """The same in units that hold both experts."""

    units = ("Layer",)
