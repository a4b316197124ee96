"""A model with a complex table, as rotary embeddings and Fourier filters have one; it can write its first gradients."""

import os

import torch
from torch import Tensor, nn

SAMPLES, LENGTH = 64, 16


class Rotated(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.turn, self.out = nn.Linear(width, width), nn.Linear(width, width)
        angles = torch.outer(torch.arange(LENGTH).float(), torch.logspace(0, -2, width // 2))
        self.register_buffer("freqs_cis", torch.polar(torch.ones_like(angles), angles))

    def forward(self, x_BLC: Tensor) -> Tensor:
        pairs = torch.view_as_complex(self.turn(x_BLC).float().unflatten(-1, (-1, 2)).contiguous())
        rotated: Tensor = torch.view_as_real(pairs * self.freqs_cis).flatten(-2)
        return x_BLC + self.out(rotated.type_as(x_BLC))


def rotary(width: int = 32, dump: str = ""):  # type: ignore[no-untyped-def]
    model = nn.Sequential(Rotated(width), Rotated(width))
    if dump:
        first: dict[str, Tensor] = {}

        def keep(name: str, gradient: Tensor) -> None:
            if name not in first:
                first[name] = gradient.detach().float().clone()
                torch.save(first, f"{dump}.rank{os.environ.get('RANK', '0')}")

        for name, parameter in model.named_parameters():
            parameter.register_hook(lambda gradient, name=name: keep(name, gradient))  # type: ignore[misc]
    x = torch.randn(SAMPLES, LENGTH, width)
    return model, torch.utils.data.TensorDataset(x, x.flip(1)), nn.MSELoss()
