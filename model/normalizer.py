"""Normalizes to mean zero and standard deviation one, and back."""

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


class Normalizer(nn.Module):
    """Normalizes in fp32. Its buffers are exact in bf16, so casting the model does not change them."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: float, std: float) -> None:
        super().__init__()
        for name, value in (("mean", mean), ("std", std)):
            # Never on the meta device, on which the rest of the policy is built.
            exact = torch.tensor(value, device="cpu").bfloat16().float()
            self.register_buffer(name, exact, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return (x.float() - _whole(self.mean)) / _whole(self.std)

    def undo(self, x: Tensor) -> Tensor:
        return x.float() * _whole(self.std) + _whole(self.mean)


def _whole(buffer: Tensor) -> Tensor:
    # FSDP2 may return even a small replicated buffer as a DTensor, which cannot be mixed with plain tensors.
    return (buffer.full_tensor() if isinstance(buffer, DTensor) else buffer).float()
