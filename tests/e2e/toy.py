"""A small workload whose ranks can be told to misbehave."""

import os
import time
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict

Fault = Literal["none", "raise", "sleep", "allocate"]
"""A few faults; tests/faults has all of them."""


class ToyConfig(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    width: int = 64
    num_cams: int = 1
    grad_ckpt: bool = False
    sleep_s: float = 0.0
    held_mib: float = 0.0
    """Memory that each sample holds until backward."""
    fault: Fault = "none"
    fault_rank: int = 1
    fault_step: int = 3


class Toy:
    Config: ClassVar = ToyConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    units: ClassVar[tuple[str, ...]] = ("Block",)
    equal_samples: ClassVar[bool] = True

    def __init__(self, config: ToyConfig) -> None:
        self.config = config

    @classmethod
    def auto_preset(cls, device: str, memory_bytes_per_rank: int) -> str:
        return ""

    def build(self) -> Any:
        import torch
        from torch import nn

        config = self.config

        class Block(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = nn.Linear(config.width, config.width)

            def forward(self, x_BC: torch.Tensor) -> torch.Tensor:
                return x_BC + torch.tanh(self.inner(x_BC.to(self.inner.weight.dtype)))

        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.blocks = nn.ModuleList([Block(), Block()])
                self.head = nn.Linear(config.width, 1)
                self.calls = 0

            def forward(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
                self.calls += 1
                time.sleep(config.sleep_s)
                if self.calls == config.fault_step:
                    misbehave(config)
                x_BC = batch["x"]
                for block in self.blocks:
                    x_BC = block(x_BC)
                y_B1 = self.head(x_BC.to(self.head.weight.dtype)).float()
                if config.held_mib:
                    held_BM = y_B1.expand(-1, int(config.held_mib * 2**18)).clone()
                    y_B1 = y_B1 + held_BM.square().mean(dim=1, keepdim=True)
                return {"loss": (y_B1 - batch["y"].float()).square().mean()}

        return Model()

    def dataset(self, seed: int) -> Any:
        import torch

        width = self.config.width

        class Samples(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
            def __len__(self) -> int:
                return 2**20

            def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
                random = torch.Generator().manual_seed(seed * 2**20 + index)
                return {"x": torch.randn(width, generator=random), "y": torch.randn(1, generator=random)}

        return Samples()


def misbehave(config: ToyConfig) -> None:
    if int(os.environ.get("RANK", "0")) != config.fault_rank:
        return
    match config.fault:
        case "raise":
            raise ValueError("planted")
        case "sleep":
            time.sleep(3600)
        case "allocate":
            import torch

            torch.empty(2**50)
