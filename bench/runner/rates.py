"""`python -m bench.runner.rates FILE`: the most that this CPU does in matrix products, copies and all-reduces.

Lower bounds divide by these rates, so the best of many trials counts, with all cores, and also for copies that fit in
caches. bench/launch/torch_side.py starts it for `bench calibrate`.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from bench.records.calibration import Rates
from bench.store import spool

TRIALS = 12
PRODUCTS = (256, 512, 1024)
"""Rows and columns of the factors."""
COPIED = (2**16, 2**20, 2**24, 2**27)
"""Bytes."""
TRIAL_S = 0.02
RANKS = 2
REDUCED = (2**16, 2**20, 2**24, 2**26)
"""Bytes of an all-reduce. Of each, a rank sends as many: 2 (n - 1) / n, with ``RANKS`` ranks (a ring's)."""


def main(file: Path) -> None:
    """Write the rates of this machine to ``file``."""
    fp32, bf16 = (max(_product(dtype, size) for size in PRODUCTS) for dtype in (torch.float32, torch.bfloat16))
    found = Rates(
        bf16_flops_per_s=max(bf16, fp32),  # an operator may compute in fp32 what it takes in bf16
        fp32_flops_per_s=fp32,
        bandwidth_bytes_per_s=max(_copy(size) for size in COPIED),
        link_bytes_per_s=_link(),
        trials=TRIALS,
    )
    spool.write(file, found)


def _product(dtype: torch.dtype, size: int) -> float:
    one, other, out = (torch.ones(size, size, dtype=dtype) for _ in range(3))
    return 2 * size**3 / _shortest_s(lambda: torch.mm(one, other, out=out))


def _copy(size: int) -> float:
    source, target = torch.ones(size, dtype=torch.uint8), torch.ones(size, dtype=torch.uint8)
    return 2 * size / _shortest_s(lambda: target.copy_(source))


def _link() -> float:
    """Bytes that one of two ranks sends in a second."""
    with TemporaryDirectory() as folder:
        spawn(_reduces, args=(folder,), nprocs=RANKS)  # type: ignore[no-untyped-call]
        return max(float(file.read_text()) for file in Path(folder).glob("rate*"))


def _reduces(rank: int, folder: str) -> None:
    """What one rank does: the same number of all-reduces as the other, each after a barrier."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS)
    fastest = 0.0
    for size in REDUCED:
        payload = torch.zeros(size, dtype=torch.uint8)
        for _ in range(TRIALS):
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(payload)
            fastest = max(fastest, size / (time.perf_counter() - start))
    Path(folder, f"rate{rank}").write_text(str(fastest))
    dist.destroy_process_group()


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
