"""Toy from a module that initializes CUDA on import, if CUDA is available."""

import os

from toy import Toy

__all__ = ["Toy"]

if "RANK" in os.environ or "LOCAL_RANK" in os.environ or "ACCELERATE_MIXED_PRECISION" in os.environ:
    import torch

    torch.zeros(1, device="cuda")
