"""A workload of one small matrix product, done many times a step: compute-bound, with a planted difference.

Cells that differ in `twin` alone are equal, unless `planted` asks for more work in twin 1. Every third step takes
`PLANTED_S` longer, a variable of the environment, as if the code had changed.
"""

import os
import time
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict


class WorkConfig(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    products: int = 200
    """Matrix products a step."""
    planted: float = 0.0
    """Share of additional products in twin 1."""
    twin: int = 0


class Work:
    Config: ClassVar = WorkConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    units: ClassVar[tuple[str, ...]] = ()

    def __init__(self, config: WorkConfig) -> None:
        self.config = config

    @classmethod
    def auto_preset(cls, device: str, memory_bytes_per_rank: int) -> str:
        return ""

    def build(self) -> Any:
        import torch
        from torch import nn

        config = self.config
        products = round(config.products * (1 + config.planted * config.twin))

        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.head = nn.Linear(8, 1)
                self.square = torch.eye(96)  # no buffer: accelerate would cast and move it
                self.steps = 0

            def forward(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
                self.steps += 1
                if self.steps % 3 == 0:
                    time.sleep(float(os.environ.get("PLANTED_S", "0")))
                with torch.no_grad():
                    work = self.square
                    for _ in range(products):
                        work = work @ self.square
                y_B1 = self.head(batch["x"].to(self.head.weight.dtype)).float() + 0 * work.sum()
                return {"loss": y_B1.square().mean()}

        return Model()

    def dataset(self, seed: int) -> Any:
        import torch

        class Samples(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
            def __len__(self) -> int:
                return 2**16

            def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
                random = torch.Generator().manual_seed(seed * 2**16 + index)
                return {"x": torch.randn(8, generator=random)}

        return Samples()
