"""A workload with one cause of slowness planted in it."""

import os
import time
from typing import Any, ClassVar, Literal

import torch
import torch.distributed as dist
from pydantic import BaseModel, ConfigDict
from torch import nn
from torch.utils.checkpoint import checkpoint
from toy import Toy

Plant = Literal["nothing", "loader", "gap", "all_reduce", "copy"]


COPIED = torch.empty(2**27)
"""512 MiB."""
SUMMED = torch.zeros(2**24)
"""64 MiB."""


class PlantedConfig(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    width: int = 64
    plant: Plant = "nothing"
    grad_ckpt: bool = False
    sleep_s: float = 0.2
    """Of what sleeps. Longer than the scatter of a step on a busy machine."""


class AlsoReduces(torch.autograd.Function):
    """The identity, whose backward sums 64 MiB over the ranks."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(SUMMED)
        return gradients[0]


class Slow(torch.optim.AdamW):
    """AdamW that takes its time."""

    def step(self, closure: Any = None) -> Any:
        time.sleep(0.2)
        return super().step(closure)


class Planted(Toy):
    Config: ClassVar = PlantedConfig

    def build(self) -> Any:
        config = self.config

        class Block(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = nn.Linear(config.width, config.width)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                for _ in range(4):
                    x = x + torch.tanh(self.inner(x))
                return x

        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.blocks = nn.ModuleList([Block(), Block()])

            def forward(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
                x = batch["x"]
                if config.plant == "gap":
                    time.sleep(config.sleep_s)
                for block in self.blocks:
                    x = checkpoint(block, x, use_reentrant=False) if config.grad_ckpt else block(x)
                if config.plant == "copy":
                    self.kept = COPIED.to("cpu", copy=True)
                if config.plant == "all_reduce":
                    x = AlsoReduces.apply(x)
                return {"loss": x.square().mean()}

        return Model()

    def dataset(self, seed: int) -> Any:
        config = self.config

        class Samples(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
            def __len__(self) -> int:
                return 2**20

            def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
                if config.plant == "loader" and os.environ["RANK"] == "1":
                    time.sleep(config.sleep_s)
                return {"x": torch.randn(256, config.width)}

        return Samples()
