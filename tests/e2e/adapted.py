"""A model of which only a part is trained, as users write one."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Literal

import torch
from torch import nn

TOKENS = 16


class LoRA(nn.Module):
    """A frozen layer and a trained update of low rank (arXiv:2106.09685)."""

    def __init__(self, inputs, outputs, rank):
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(False)
        self.down, self.up = nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


class Block(nn.Module):
    def __init__(self, width, rank):
        super().__init__()
        self.norm = nn.LayerNorm(width).requires_grad_(False)
        self.wide, self.narrow = LoRA(width, 4 * width, rank), LoRA(4 * width, width, rank)

    def forward(self, x):
        return x + self.narrow(nn.functional.gelu(self.wide(self.norm(x))))


class Model(nn.Module):
    def __init__(self, width, rank, words, blocks):
        super().__init__()
        self.words = nn.Embedding(words, width).requires_grad_(False)
        self.blocks = nn.ModuleList([Block(width, rank) for _ in range(blocks)])
        self.head = nn.Linear(width, words).requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(1), requires_grad=False)

    def forward(self, words, targets):
        x = self.words(words)
        for block in self.blocks:
            x = block(x)
        logits = self.head(x) * self.scale.to(x.dtype)
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())}


@dataclass
class Adapted:
    trained: Literal["adapters", "top", "scale"] = "adapters"
    """The adapters; all of the upper half, above a frozen tower; or one number, of which a rank may hold nothing."""
    width: int = 256
    rank: int = 4
    words: int = 1000
    blocks: int = 4
    units = ("Block",)

    def build(self):
        model = Model(self.width, self.rank, self.words, self.blocks)
        if self.trained != "adapters":
            model.requires_grad_(False)
            for part in [model.head, *model.blocks[self.blocks // 2 :]] if self.trained == "top" else []:
                part.requires_grad_(True)
            model.scale.requires_grad_(self.trained == "scale")
        return model

    def dataset(self):
        return [{"words": words, "targets": words} for words in torch.randint(0, self.words, (64, TOKENS))]

    def flops_per_sample(self):
        """With adapters, by hand: a weight takes two in forward, two for the gradient of its input, and two for its
        own if it is trained. What comes before the first adapter gets no gradient."""
        if self.trained != "adapters":
            return None
        layer, adapter = 4 * self.width**2, self.rank * 5 * self.width
        forward = self.blocks * 2 * (layer + adapter) + self.words * self.width
        of_inputs = forward - layer - self.rank * self.width
        of_weights = self.blocks * 2 * adapter
        return SimpleNamespace(step=2 * TOKENS * (forward + of_inputs + of_weights), recomputed=0)
