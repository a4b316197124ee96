"""The adapter of a CPU, in a process of its own: what it changes there stays."""

import json
import os
import subprocess
import sys

import pytest

FREED = """
import json, sys, torch
from bench.observe.device import status_bytes
from bench.runner.device import Cpu

MIB = 2**20
torch.set_num_threads(1)
Cpu().limit_memory(2**34 if sys.argv[1] == "limited" else None)
left = []
for size in (16, 8, 12, 6):  # each but the first fits into what glibc would have learnt to keep
    before = status_bytes("VmData")
    held = torch.ones(size * MIB, dtype=torch.uint8)
    del held
    left.append((status_bytes("VmData") - before) // MIB)
print(json.dumps(left))
"""


@pytest.mark.parametrize(
    ("limited", "own", "back"),
    [(True, {}, True), (False, {}, False), (True, {"MALLOC_MMAP_THRESHOLD_": str(2**25)}, False)],
)
def test_under_a_limit_what_is_freed_goes_back_whatever_was_freed_before(
    limited: bool, own: dict[str, str], back: bool
) -> None:
    own |= {"MALLOC_TRIM_THRESHOLD_": str(2**25)} if own else {}
    done = subprocess.run(
        [sys.executable, "-c", FREED, "limited" if limited else "free"],
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    left = json.loads(done.stdout)
    assert (max(left) <= 1) is back, left
