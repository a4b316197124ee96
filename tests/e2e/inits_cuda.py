"""Toy from a module that pretends to have initialized CUDA on import. inits_cuda_for_real.py really does."""

import os

from toy import Toy

__all__ = ["Toy"]

if "RANK" in os.environ:
    import torch

    torch.cuda.is_initialized = lambda: True
