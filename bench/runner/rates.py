"""`python -m bench.runner.rates FILE`: the most that this machine's CPU does in matrix products and in copies.

Lower bounds divide by these rates, so the best of many trials counts, with all cores, and also for copies that fit in
caches. bench/launch/measured_rates.py starts it for `bench calibrate`.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from bench.records.calibration import Rates
from bench.store import spool

TRIALS = 12
PRODUCTS = (256, 512, 1024)
"""Rows and columns of the factors."""
COPIED = (2**16, 2**20, 2**24, 2**27)
"""Bytes."""
TRIAL_S = 0.02


def main(file: Path) -> None:
    """Write the rates of this machine to ``file``."""
    fp32, bf16 = (max(_product(dtype, size) for size in PRODUCTS) for dtype in (torch.float32, torch.bfloat16))
    found = Rates(
        bf16_flops_per_s=max(bf16, fp32),  # an operator may compute in fp32 what it takes in bf16
        fp32_flops_per_s=fp32,
        bandwidth_bytes_per_s=max(_copy(size) for size in COPIED),
        trials=TRIALS,
    )
    spool.write(file, found)


def _product(dtype: torch.dtype, size: int) -> float:
    one, other, out = (torch.ones(size, size, dtype=dtype) for _ in range(3))
    return 2 * size**3 / _shortest_s(lambda: torch.mm(one, other, out=out))


def _copy(size: int) -> float:
    source, target = torch.ones(size, dtype=torch.uint8), torch.ones(size, dtype=torch.uint8)
    return 2 * size / _shortest_s(lambda: target.copy_(source))


def _shortest_s(work: Callable[[], object]) -> float:
    """Seconds of one call, in the shortest of the trials."""
    calls, shortest_s = 1, float("inf")
    for _ in range(TRIALS):
        start = time.perf_counter()
        for _ in range(calls):
            work()
        each_s = (time.perf_counter() - start) / calls
        shortest_s = min(shortest_s, each_s)
        calls = max(1, int(TRIAL_S / each_s))
    return shortest_s


if __name__ == "__main__":
    main(Path(sys.argv[1]))
