"""Toy with parts that are not trained, each for a different reason."""

from typing import Any, Literal

import toy


class ToyConfig(toy.ToyConfig):
    part: Literal["none", "spare", "sometimes"] = "none"
    """``spare``: a head that no loss uses. ``sometimes``: a layer that only some samples pass through."""


class Toy(toy.Toy):
    Config = ToyConfig

    def build(self) -> Any:
        import torch
        from torch import nn

        config, inner = self.config, super().build()

        class Silent(torch.autograd.Function):
            """Its backward reaches the weight without a gradient."""

            @staticmethod
            def forward(context, x_BC, weight):
                return x_BC.clone()

            @staticmethod
            def backward(context, grad_BC):
                return grad_BC, None

        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.tower = nn.Sequential(nn.Linear(config.width, 8), nn.Linear(8, config.width))
                self.tower.requires_grad_(False)
                self.inner = inner
                if config.part == "spare":
                    self.spare = nn.Sequential(nn.Linear(config.width, 4), nn.Linear(4, 1, bias=False))
                self.gate = nn.Linear(config.width, 1)
                self.same_gate = self.gate
                if config.part == "sometimes":
                    self.sometimes = nn.Linear(config.width, config.width)
                self.silent = nn.Parameter(torch.ones(3))

            def forward(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
                x_BC = Silent.apply(batch["x"].to(self.gate.weight.dtype), self.silent)
                x_BC = x_BC + self.tower(x_BC)
                if config.part == "sometimes" and batch["x"][0, 0] > 0:
                    x_BC = x_BC + self.sometimes(x_BC)
                loss = self.inner({**batch, "x": x_BC})["loss"]
                return {"loss": loss + 0 * self.same_gate(x_BC).float().sum()}

        return Model()
