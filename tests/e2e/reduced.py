"""A model whose code sets the precision of float32 products for the whole process, as many training scripts do."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))

    def forward(self, x):
        return self.layers(x).square().mean()


@dataclass
class Reduced:
    precision: Literal["highest", "high", "medium"] = "highest"

    def build(self):
        torch.set_float32_matmul_precision(self.precision)
        return Model()

    def dataset(self):
        return [{"x": x} for x in torch.randn(64, 64)]
