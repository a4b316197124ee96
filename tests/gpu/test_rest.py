"""The rest: forks, the names of devices, and several of them."""

import os
import re
from collections.abc import Callable
from typing import Any

import pytest
from checks import AVAILABLE, HARDWARE, POLICY, REHEARSED, first, needs_device, run
from harness import Bench

from bench.machine import gpus

FEW: dict[str, Any] = {
    "workload": POLICY,
    "measure": {"warmup_steps": 2, "steps": 5, "phase_steps": 3},
}
Found = Callable[..., None]


@needs_device("to initialize")
def test_a_module_that_initializes_cuda_is_found_before_the_fork(bench: Bench) -> None:
    """A module that initializes CUDA when it is imported is found before the fork, and every attempt launched alone."""
    matrix = bench.matrix(workload={"name": "inits_cuda_for_real:Toy"}, matrix={"backend": "single", "batch": 2})
    output = bench("run", matrix, "--out", str(bench.folder / "run"))
    assert "a module of the workload initializes CUDA" in output
    assert [(result.outcome.kind, result.isolation) for result in bench.results()] == [("ok", "launch")]


@needs_device("to name")
@pytest.mark.parametrize("named", ["index", "uuid"])
def test_deepspeed_in_a_child(bench: Bench, found: Found, named: str) -> None:
    """DeepSpeed trains in a forked child, whatever CUDA_VISIBLE_DEVICES names its GPU by."""
    if "zero2" not in AVAILABLE:
        pytest.skip("needs DeepSpeed: pip install deepspeed")
    visible = "0" if named == "index" else gpus.visible(os.environ)[0].uuid
    [result] = run(bench, [{"backend": "zero2"}], environment={"CUDA_VISIBLE_DEVICES": visible}, **FEW)
    found(loss=f"{first(result).losses[-1]:.4f}")
    assert result.isolation == "fork"


@pytest.mark.parametrize("backend", [name for name in AVAILABLE if not REHEARSED or not name.startswith("zero")])
def test_fp16_trains(bench: Bench, found: Found, backend: str) -> None:
    """It multiplies in fp16 and scales its gradients. DeepSpeed does so on few CPUs."""
    [result] = run(bench, [{"backend": backend}], **{**FEW, "launch": {"mixed_precision": "fp16"}})
    rank = first(result)
    found(loss=f"{rank.losses[-1]:.4f}", skipped=rank.skipped_steps)
    assert rank.regime.matmul_dtype == "float16"
    assert rank.skipped_steps is not None


@pytest.mark.gpus(2)
def test_all_backends_on_all_devices(bench: Bench, found: Found) -> None:
    """All backends train on all devices, to the same losses."""
    ranks = max(2, HARDWARE.devices)
    cells = [{"backend": name} for name in AVAILABLE if name != "single"]
    results = run(bench, cells, launch={"num_processes": ranks}, **FEW)
    losses = {result.attempt.cell.backend: first(result).losses[-1] for result in results}
    spread = max(losses.values()) / min(losses.values()) - 1
    found(ranks=ranks, spread=f"{spread:.2e}")
    assert spread < 0.02


@pytest.mark.gpus(2)
def test_a_hang_is_named(bench: Bench, found: Found) -> None:
    """A rank that does nothing is named with its place, while the others wait in NCCL."""
    matrix = bench.matrix(
        workload={"name": "toy:Toy", "fault": "sleep", "fault_rank": 1},
        matrix={"backend": "ddp", "batch": 2},
        launch={"num_processes": 2, "hang_after_s": 20},
    )
    bench("run", matrix, "--out", str(bench.folder / "run"), expect=1)
    [result] = bench.results()
    reason = getattr(result.outcome, "reason", "")
    found(reason=reason)
    assert result.outcome.kind == "hang"
    assert re.search(r"rank 1 is in misbehave", reason)
    assert REHEARSED or "rank 0" in reason
