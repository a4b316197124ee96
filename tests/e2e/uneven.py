"""Samples of many lengths, the longest of them late, padded to the longest of a batch."""

from dataclasses import dataclass

import torch
from torch import nn

SAMPLES, LONG, SHORT = 400, 1024, 32
HELD = 1024
"""fp32 values that each token holds until backward: 4 MiB for a long sample."""


class Lines(torch.utils.data.Dataset):
    """Drawn at once, as text is read at once."""

    def __init__(self):
        self.lines = [torch.randn(LONG if index == SAMPLES - 7 else SHORT) for index in range(SAMPLES)]

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return {"x": self.lines[index]}

    def __getitems__(self, indices):
        lines = [self.lines[index] for index in indices]
        return [{"x": line} for line in nn.utils.rnn.pad_sequence(lines, batch_first=True)]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(HELD))

    def forward(self, x):
        return (x[..., None] * self.scale).float().square().mean()


@dataclass
class Uneven:
    def build(self):
        return Model()

    def dataset(self):
        return Lines()
