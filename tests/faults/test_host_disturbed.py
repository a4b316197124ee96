"""Other programs use the machine during an attempt: it is measured anyway, and its row is marked as doubtful."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from moments import Struck
from table import FaultBench, judge, skip

from bench import machine

pytestmark = pytest.mark.alone  # who else uses the machine

BUSY = "while True: pass"
HOLDS = """
import time, torch
kept = torch.empty(2**31, dtype=torch.uint8, device="cuda")
print(flush=True)
time.sleep(600)
"""


@contextmanager
def strangers(program: str, number: int) -> Iterator[list["subprocess.Popen[bytes]"]]:
    made = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) for _ in range(number)]
    try:
        yield made
    finally:
        for one in made:
            one.kill()
            one.communicate()


def doubts(bench: FaultBench) -> str:
    return (bench.folder / "run/report-full.md").read_text().partition("## Rows to doubt")[2].partition("\n## ")[0]


def test_another_program_on_the_cpu(bench: FaultBench) -> None:
    run = Struck(bench)
    run.come_to("set-up")
    with strangers(BUSY, os.cpu_count() or 1):
        assert run.end()[0] == 0
    assert any("turn 2" in line and "of the CPU during the attempt" in line for line in doubts(bench).splitlines()), (
        doubts(bench)
    )
    judge(bench, "another program on the CPU", "measuring", run.result(2), "ok")


@pytest.mark.gpu
def test_another_program_on_the_gpu(bench: FaultBench) -> None:
    if machine.detect().device != "cuda":
        skip("another program on the GPU", "start", "needs a CUDA device and its driver")
    matrix = bench.matrix(matrix={"backend": "single", "batch": 2})
    with strangers(HOLDS, 1) as [stranger]:
        stranger.stdout.readline()
        bench("run", matrix, "--out", str(bench.folder / "run"))
    assert "GPU 0 had " in doubts(bench)
    judge(bench, "another program on the GPU", "start", bench.results()[0], "ok")
