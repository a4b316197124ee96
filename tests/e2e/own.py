"""Workloads as users write them: only a model, its samples and a loss. Each can be told to be wrong."""

import os
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Literal

import torch
from torch import nn

LENGTH = 3
"""Samples: fewer than a step takes."""


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, x):
        return x + self.inner(x).tanh()


class Blocks(nn.Module):
    """Returns what it computed, and leaves the loss to others."""

    def __init__(self, width):
        super().__init__()
        self.blocks = nn.ModuleList([Block(width), Block(width)])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class WithLoss(Blocks):
    """As transformers' models: keywords in, an object with a loss out."""

    def forward(self, inputs, labels):
        output = super().forward(inputs)
        return SimpleNamespace(loss=nn.functional.mse_loss(output.float(), labels.float()), logits=output)


class OfBatch(Blocks):
    def forward(self, batch):
        return {"loss": nn.functional.mse_loss(super().forward(batch["inputs"]).float(), batch["labels"].float())}


@dataclass
class Own:
    style: Literal["pair", "keywords", "batch"] = "pair"
    width: int = 16

    def __post_init__(self):
        if self.style == "pair":
            self.loss = nn.MSELoss()

    def build(self):
        return {"pair": Blocks, "keywords": WithLoss, "batch": OfBatch}[self.style](self.width)

    def dataset(self):
        x, y = torch.randn(2, LENGTH, self.width)
        if self.style == "pair":
            return torch.utils.data.TensorDataset(x, y)
        return [{"inputs": one, "labels": other} for one, other in zip(x, y, strict=True)]


def own(mistake: str = "none", width: int = 16):
    """A function, and what can be wrong with it."""
    samples = torch.utils.data.TensorDataset(*torch.randn(2, 0 if mistake == "no samples" else LENGTH, width))
    if mistake == "lengths":
        samples = [(torch.ones(1 + length, width), torch.ones(1 + length, width)) for length in range(LENGTH)]
    if mistake == "differs":
        torch.manual_seed(int(os.environ["RANK"]))
    model = Blocks(width)
    return (model, samples) if mistake == "no loss" else (model, samples, nn.MSELoss())


class WrongUnits(Own):
    units = ("Blok",)
