"""Normalizes to mean zero and standard deviation one, and back."""

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from bench.model.statistics import Statistics


class Normalizer(nn.Module):
    """Normalizes in fp32. Its buffers are exact in bf16, so casting the model does not change them."""

    mean: Tensor
    std: Tensor

    def __init__(self, statistics: Statistics) -> None:
        super().__init__()
        for name in ("mean", "std"):
            # Never on the meta device, on which the rest of the policy is built.
            value = torch.tensor(getattr(statistics, name), device="cpu").bfloat16().float()
            self.register_buffer(name, value, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return (x.float() - _whole(self.mean)) / _whole(self.std)

    def undo(self, x: Tensor) -> Tensor:
        return x.float() * _whole(self.std) + _whole(self.mean)


def _whole(buffer: Tensor) -> Tensor:
    # FSDP2 may return even a small replicated buffer as a DTensor, which cannot be mixed with plain tensors.
    return (buffer.full_tensor() if isinstance(buffer, DTensor) else buffer).float()
