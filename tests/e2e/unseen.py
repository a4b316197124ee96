"""Models of which a part is not trained, or whose samples hold more than their forward names: nothing of it fails."""

from typing import Any, Literal

import torch
from torch import Tensor, nn

WIDTH, TOKENS, LENGTH = 8, 16, 4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x).tanh()


class Vision(nn.Module):
    """Larger than the rest of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Linear(3 * WIDTH, WIDTH)
        self.layers = nn.ModuleList([Block() for _ in range(6)])

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.patches(pixels)
        for layer in self.layers:
            x = layer(x)
        return x


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.vision_tower = Vision()
        self.embed = nn.Embedding(TOKENS, WIDTH)
        self.layers = nn.ModuleList([Block(), Block()])
        self.norm = nn.LayerNorm(WIDTH)

    def compute(self, input_ids: Tensor, labels: Tensor, pixel_values: Tensor | None) -> Tensor:
        x = self.embed(input_ids)
        if pixel_values is not None:
            x = x + self.vision_tower(pixel_values)
        for layer in self.layers:
            x = layer(x)
        scores = self.norm(x) @ self.embed.weight.T
        return nn.functional.cross_entropy(scores.float().flatten(0, 1), labels.flatten())


class Wrapped(Language):
    """As an adapter wraps a model: what it has no use for, it hands on."""

    def forward(self, input_ids: Tensor, labels: Any = None, **kwargs: Any) -> dict[str, Tensor]:
        return {"loss": self.compute(input_ids, labels, kwargs.get("pixel_values"))}


class Named(Language):
    """The same, which takes text alone."""

    def forward(self, input_ids: Tensor, labels: Any = None) -> dict[str, Tensor]:
        return {"loss": self.compute(input_ids, labels, None)}


def vlm(forward: Literal["wrapped", "named"] = "wrapped", trained: Literal["all", "adapters"] = "all"):
    model = {"wrapped": Wrapped, "named": Named}[forward]()
    if trained == "adapters":
        for name, parameter in model.named_parameters():
            parameter.requires_grad = "inner" in name
    samples = [
        {
            "input_ids": torch.randint(TOKENS, (LENGTH,)),
            "labels": torch.randint(TOKENS, (LENGTH,)),
            "pixel_values": torch.randn(LENGTH, 3 * WIDTH),
            "idx": number,
            "text": "a picture",
        }
        for number in range(4)
    ]
    return model, samples
