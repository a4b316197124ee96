"""A model that refuses to run while a process group would give up on its own."""

from datetime import timedelta

import torch
from torch import Tensor, nn
from torch.distributed import distributed_c10d as c10d


def impatient() -> list[str]:
    """The groups whose collectives time out within an hour."""
    return [
        f"{name} of {group.size()} ranks: {timeout}"
        for group, (_, name) in ((group, c10d._world.pg_map[group]) for group in c10d._world.pg_map)
        for timeout in [group._get_backend(torch.device("cpu")).options._timeout]
        if timeout < timedelta(hours=1)
    ]


class Patient(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        if found := impatient():
            raise RuntimeError("groups that give up: " + "; ".join(found))
        return self.layer(x).square().mean()


def patient() -> tuple[nn.Module, list[dict[str, Tensor]]]:
    return Patient(), [{"x": x} for x in torch.randn(64, 8)]
