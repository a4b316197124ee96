"""Every backend starts from the same weights, whoever draws which part of them."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from drawn import SHARED, cell_of, digests, exact
from harness import HERE, ONE_THREAD, ROOT

from bench.backends import BACKENDS
from bench.launch.environment import added_environment, launch_environment
from bench.model.workload import Pi07
from bench.records.machine import Hardware

CASES = {"tiny": "no", "small": "bf16"}
"""By preset, the precision: fp32 weights are compared bit for bit, others as bf16."""


@pytest.fixture
def drawn(tmp_path: Path, preset: str) -> Path:
    """The folder in which each rank of each backend has left its digests."""
    cases = [f"{backend}:{preset}:{CASES[preset]}" for backend in ("single", *SHARED)]
    hardware = Hardware(device="cpu", devices=0, cores=2, memory_bytes=2**34)
    running = []
    for rank in range(2):
        world = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1"}
        added = {**added_environment(2, hardware, {}), "PYTHONPATH": str(ROOT), **ONE_THREAD}
        added |= {name: str(value) for name, value in world.items()}
        # With the ninja of this environment, as in runs: another one would compile DeepSpeed's extension again.
        environment = launch_environment(os.environ, added)
        command = [sys.executable, "drawn.py", str(tmp_path), *cases]
        running.append(subprocess.Popen(command, cwd=HERE, env=environment, start_new_session=True))
    try:
        while None in (codes := [one.poll() for one in running]) and not any(codes):
            time.sleep(0.1)
        assert codes == [0, 0]
    finally:
        for one in running:
            with suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)
    return tmp_path


@pytest.mark.parametrize("preset", ["tiny", pytest.param("small", marks=pytest.mark.long)])
def test_every_backend_starts_from_the_weights_that_build_returns(drawn: Path, preset: str) -> None:
    precision = CASES[preset]
    cell = cell_of(f"single:{preset}:{precision}")
    torch.manual_seed(cell.measure.seed)
    model = Pi07(Pi07.Config.model_validate(cell.options)).build()
    weights = ((name, one.detach()) for name, one in model.named_parameters())
    wanted = (exact if precision == "no" else digests)(weights)
    assert len(set(wanted.values())) > len(wanted) / 3  # norms and biases start alike, matrices do not
    assert set(BACKENDS) == {"single", *SHARED}
    for backend in BACKENDS:
        left = sorted((drawn / f"{backend}:{preset}:{precision}").glob("?.json"))
        assert len(left) == (1 if backend == "single" else 2)
        for file in left:
            assert json.loads(file.read_text()) == wanted, backend
