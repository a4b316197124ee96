"""Samples of which those of about the tenth batch are four times as long as all others, padded to the longest of a
batch. The masks say what is padding."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import torch
from torch import nn

SAMPLES, LONG, SHORT = 400, 256, 64
LATE = range(360, 400)
"""The long ones: in the tenth batch of 40."""
HELD = 1024
"""fp32 values that each token holds until backward: 1 MiB for a long sample, and its square as much."""


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(HELD))

    def forward(self, x, attention_mask):
        held = (x[..., None] * self.scale).float().square().mean(-1)
        return (held * attention_mask).sum() / attention_mask.sum()


@dataclass
class Ragged:
    trial: int = 0
    """Tells searches apart."""
    blind: bool = False
    """Whether the workload says that its samples are equal, which they are not."""
    names_worst: bool = False
    equal_samples: bool = field(init=False)

    def __post_init__(self):
        self.equal_samples = self.blind
        if self.names_worst:
            self.worst_batch = lambda samples, size: [samples[LATE[0]]] * size

    def build(self):
        return Model()

    def dataset(self):
        return [torch.randn(LONG if index in LATE else SHORT) for index in range(SAMPLES)]

    def collate(self, lines):
        masks = [torch.ones(len(line), dtype=torch.long) for line in lines]
        x, mask = (nn.utils.rnn.pad_sequence(rows, batch_first=True) for rows in (lines, masks))
        return {"x": x, "attention_mask": mask}

    def flops_per_sample(self, tokens):
        return SimpleNamespace(step=3 * tokens * HELD, recomputed=0)
