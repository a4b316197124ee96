"""fp32 weights under autocast and bf16 weights, on real ranks, beside a plain loop of accelerate."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from harness import ONE_THREAD
from kept import KeptBench
from rotary import rotary

from bench.records.outcome import Ok, Result
from bench.store.run_folder import Store

HERE = Path(__file__).parent
OWN = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "MULTI_GPU",
    "mixed_precision": "bf16",
    "num_machines": 1,
    "machine_rank": 0,
    "num_processes": 2,
    "rdzv_backend": "static",
    "same_network": True,
}
STEPS = {"warmup_steps": 2, "steps": 3, "phase_steps": 1}
CELLS = {
    "single fp32": {"backend": "single", "batch": 4, "weights": "fp32"},
    "single bf16": {"backend": "single", "batch": 4, "weights": "bf16"},
    "ddp fp32": {"backend": "ddp", "batch": 2},
    "ddp bf16": {"backend": "ddp", "batch": 2, "weights": "bf16"},
    "zero2": {"backend": "zero2", "batch": 2},
    "mine": {"backend": {"name": "mine", "config_file": "own.yaml"}, "batch": 2},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    bench = KeptBench(tmp_path_factory.mktemp("weights_dtype"))
    (bench.folder / "own.yaml").write_text(yaml.safe_dump(OWN))
    matrix = bench.matrix(
        workload={"name": f"{HERE / 'rotary.py'}:rotary"},
        matrix={},
        include=[{**cell, "dump": str(bench.folder / name)} for name, cell in CELLS.items()],
        measure={**STEPS, "checkpoint": True},
    )
    bench("run", matrix, "--out", str(bench.folder / "run"))
    bench.assert_gone()
    return bench.folder / "run"


@pytest.fixture(scope="module")
def results(run: Path) -> dict[str, Result]:
    return {Path(str(result.attempt.cell.options["dump"])).name: result for result in Store(run).results()}


@pytest.fixture(scope="module")
def plain(run: Path) -> dict[str, Any]:
    """What a plain loop holds and computes, under `accelerate launch` with the same config."""
    command = [sys.executable, "-m", "accelerate.commands.launch", "--main_process_port", "0"]
    command += ["--config_file", str(run.parent / "own.yaml"), str(HERE / "plain_loop.py"), str(sum(STEPS.values()))]
    done = subprocess.run(command, env={**os.environ, **ONE_THREAD}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    read: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return read


@pytest.mark.parametrize("name", ["ddp fp32", "mine"])
def test_ddp_is_that_of_a_plain_loop_to_the_bit(results: dict[str, Result], plain: dict[str, Any], name: str) -> None:
    outcome = results[name].outcome
    assert isinstance(outcome, Ok), outcome
    for rank in outcome.ranks:
        assert [*rank.warmup_losses, *rank.losses] == plain["losses"]
        dtypes = ("weights_dtype", "optimizer_dtype", "reduction_dtype")
        assert [f"torch.{getattr(rank.regime, dtype)}" for dtype in dtypes] == [plain[dtype] for dtype in dtypes]
        assert rank.regime.masters_dtype == "float32"
        assert rank.regime.matmul_shares == {"bfloat16": 1.0}


def test_bf16_weights_are_reduced_in_bf16_with_fp32_masters(results: dict[str, Result]) -> None:
    outcome = results["ddp bf16"].outcome
    assert isinstance(outcome, Ok), outcome
    for rank in outcome.ranks:
        assert (rank.regime.weights_dtype, rank.regime.reduction_dtype) == ("bfloat16", "bfloat16")
        assert (rank.regime.masters_dtype, rank.regime.optimizer_dtype) == ("float32", "float32")


def test_gradients_of_fp32_weights_are_twice_the_bytes(results: dict[str, Result]) -> None:
    sent = {
        name: sum(one.payload_bytes for one in result.outcome.ranks[0].traffic or () if one.operation == "all_reduce")
        for name, result in results.items()
        if isinstance(result.outcome, Ok)
    }
    assert sent["ddp fp32"] == pytest.approx(2 * sent["ddp bf16"], rel=0.02)


@pytest.mark.parametrize("name", CELLS)
def test_complex_tensors_survive(run: Path, name: str) -> None:
    """The gradients of the first step are those of fp32 within the noise of bf16."""
    torch.manual_seed(1000)
    model, _, loss = rotary()
    torch.manual_seed(1000)
    x, y = rotary()[1][: int(str(CELLS[name]["batch"]))]
    loss(model(x), y).backward()
    exact = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    saved = torch.load(run.parent / f"{name}.rank0")
    found = torch.cat([saved[name].flatten() for name, _ in model.named_parameters()])
    assert 0 < (found - exact).norm() / exact.norm() < 0.05


def test_checkpoints_are_resumed(results: dict[str, Result]) -> None:
    for result in results.values():
        assert isinstance(result.outcome, Ok), result.outcome
        assert all(rank.checkpoint is not None and rank.checkpoint.apart == 0 for rank in result.outcome.ranks)
