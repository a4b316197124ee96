"""A model that compiles parts of itself, in the ways that models do."""

import torch
from torch import Tensor, nn

STRICT = {"backend": "aot_eager", "fullgraph": True}
"""Fails where a hook would split a graph; its compiler is quick."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x_BC: Tensor) -> Tensor:
        y_BC: Tensor = self.down(torch.relu(self.up(x_BC)))
        return x_BC + y_BC


class Net(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.blocks: nn.ModuleList = nn.ModuleList([Block() for _ in range(3)])
        self.frozen, self.head = nn.Linear(16, 16).requires_grad_(False), nn.Linear(16, 10)
        self.run = self.uncompiled
        match how:
            case "wrapped":
                self.blocks = nn.ModuleList([torch.compile(block, **STRICT) for block in self.blocks])
            case "in place":
                for block in self.blocks:
                    block.compile(**STRICT)
            case "method":
                self.run = torch.compile(self.uncompiled, backend="aot_eager")  # FSDP2 hooks the blocks, and splits it

    def uncompiled(self, x_BC: Tensor) -> Tensor:
        for block in self.blocks:
            x_BC = block(x_BC)
        y_BC: Tensor = self.frozen(x_BC)
        return y_BC

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.head(self.run(x)), y)


def workload(how: str = "not at all") -> tuple[nn.Module, list[dict[str, Tensor]]]:
    draw = torch.Generator().manual_seed(0)
    return Net(how), [{"x": torch.randn(16, generator=draw), "y": torch.tensor(index % 10)} for index in range(64)]
