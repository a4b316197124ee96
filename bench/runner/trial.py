"""`python -m bench.runner.trial DEVICE RANK RANKS MEETING`: whether a rank computes, and reduces with the others.

bench/launch/torch_side.py starts it for `bench doctor`.
"""

import json
import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

TRIAL_TIMEOUT = timedelta(minutes=2)
SIZE = 64


def main(device: str, rank: int, ranks: int, meeting: str) -> int:
    """Print a line of JSON: the CUDA that torch is built for, and what went wrong or null. Returns the exit code."""
    error = None
    try:
        run(device, rank, ranks, meeting)
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}".strip().splitlines()[0]
    print(json.dumps({"torch_cuda": torch.version.cuda, "error": error}), flush=True)  # noqa: T201
    return 0 if error is None else 1


def run(device: str, rank: int, ranks: int, meeting: str) -> None:
    """Multiply in bf16, and sum the product over the ranks.

    Args:
        meeting: a file that does not exist yet, the same for all ranks.

    Raises:
        Exception: whatever torch raises, and ArithmeticError for a wrong sum.
    """
    if device == "cuda" and torch.version.cuda is None:
        raise RuntimeError(f"torch {torch.__version__} is built without CUDA")
    at = torch.device(device) if device == "cpu" else torch.device(device, rank)
    ones = torch.ones(SIZE, SIZE, device=at, dtype=torch.bfloat16)
    product = ones @ ones
    if ranks > 1:
        if device != "cpu":
            torch.get_device_module(at).set_device(at)
        backend = dist.get_default_backend_for_device(at)
        dist.init_process_group(
            backend, init_method=f"file://{meeting}", rank=rank, world_size=ranks, timeout=TRIAL_TIMEOUT
        )
        dist.all_reduce(product)
    if (found := product.float().mean().item()) != SIZE * ranks:
        raise ArithmeticError(f"a sum over {ranks} ranks is {found}, not {SIZE * ranks}")


if __name__ == "__main__":
    device, rank, ranks, meeting = sys.argv[1:]
    # Past torch's clean-up, which may abort while the other ranks are still at work.
    os._exit(main(device, int(rank), int(ranks), meeting))
