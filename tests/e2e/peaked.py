"""A workload that is fastest at a micro-batch of four: each call costs time, and so does the square of its samples."""

import time
from typing import Any, ClassVar

import torch
from slowed import Planted, PlantedConfig
from toy import Toy

FASTEST = 4


class PeakedConfig(PlantedConfig):
    sleep_s: float = 0.1


class Peaked(Planted):
    Config: ClassVar = PeakedConfig
    dataset = Toy.dataset

    def build(self) -> Any:
        model = super().build()

        def wait(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            time.sleep(self.config.sleep_s / 2 * (1 + (len(inputs[0]) / FASTEST) ** 2))

        for block in model.blocks:
            block.register_forward_pre_hook(wait)
        return model
