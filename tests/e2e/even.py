"""A model whose parameters can be cut into 64 equal parts: no sharding pads them."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

WIDTH, OUT = 256, 64


class EvenConfig(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    blocks: int = 3


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x_BC: Tensor) -> Tensor:
        out: Tensor = x_BC + self.narrow(self.wide(x_BC.to(self.wide.weight.dtype)).relu())
        return out


class Model(nn.Module):
    def __init__(self, config: EvenConfig) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Block() for _ in range(config.blocks)), nn.Linear(WIDTH, OUT)

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        x_BC = batch["x"]
        for block in self.blocks:
            x_BC = block(x_BC)
        return {"loss": self.head(x_BC.to(self.head.weight.dtype)).float().square().mean()}


class Samples(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 2**12

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": torch.full((WIDTH,), (index % 7 + 1) / 7)}


class Even:
    Config: ClassVar = EvenConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    units: ClassVar[tuple[str, ...]] = ("Block",)
    equal_samples: ClassVar[bool] = True

    def __init__(self, config: EvenConfig) -> None:
        self.config = config

    @classmethod
    def auto_preset(cls, device: str, memory_bytes_per_rank: int) -> str:
        return ""

    def build(self) -> nn.Module:
        return Model(self.config)

    def dataset(self, seed: int) -> Samples:
        return Samples()
