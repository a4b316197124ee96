"""Toy from a module that looks as if it had initialised CUDA on import. Beside it, test_gpu.py does so for real."""

import os

from toy import Toy

__all__ = ["Toy"]

if "RANK" in os.environ:
    import torch

    torch.cuda.is_initialized = lambda: True
