"""Each cell that its backend forbids is run without the refusal, and the failure that it prevents is seen."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from table import FaultBench

from bench import backends
from bench.records.cell import Regime
from bench.records.outcome import Failed, Ok, Result

FEW = {"warmup_steps": 1, "steps": 3, "phase_steps": 0}


class Unrefused(FaultBench):
    """A bench that refuses nothing of a cell: see unrefused.py."""

    module = "unrefused"


def fsdp(version: int, loading: bool | None, synced: bool | None, **fields: object) -> dict[str, Any]:
    switches = {"fsdp_cpu_ram_efficient_loading": loading, "fsdp_sync_module_states": synced}
    return {
        "distributed_type": "FSDP",
        "mixed_precision": "bf16",
        "fsdp_config": {
            "fsdp_version": version,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            **{name: value for name, value in switches.items() if value is not None},
            **fields,
        },
    }


SWITCHES = {
    f"v{version}_{loading}_{synced}": fsdp(version, loading, synced)
    for version in (1, 2)
    for loading in (None, True, False)
    for synced in (None, True, False)
}
CONFIGS = {
    **SWITCHES,
    "recomputes": fsdp(2, False, False, fsdp_activation_checkpointing=True),
    "compiles": fsdp(2, False, False) | {"dynamo_config": {"dynamo_backend": "EAGER"}},
    "plain_fsdp2": fsdp(2, False, False),
    "autocasts": {"distributed_type": "DEEPSPEED", "deepspeed_config": {"deepspeed_config_file": "autocasts.json"}},
}
AUTOCASTS = {
    "zero_optimization": {"stage": 2},
    "torch_autocast": {"enabled": True, "dtype": "bfloat16"},
    "train_micro_batch_size_per_gpu": "auto",
    "train_batch_size": "auto",
}
NO_OPTIMIZER, NO_MASTERS = {"optimizer": "none"}, {"master_weights": False}
FP32 = {"mixed_precision": "no"}
MASTERS = "masters_dtype: requested bfloat16, observed float32"
FAILS: list[tuple[str, dict[str, Any], str]] = [
    ("zero1", NO_OPTIMIZER, "zero stage 1 requires an optimizer"),
    ("zero2", NO_OPTIMIZER, "zero stage 2 requires an optimizer"),
    ("zero3", NO_OPTIMIZER, "'DeepSpeedZeRoOffload' object has no attribute"),
    *((backend, NO_MASTERS, MASTERS) for backend in ("fsdp", "fsdp_grad_op", "fsdp2", "zero1", "zero2", "zero3")),
    *((backend, {"optimizer": "muon"}, "muon finds no matrix to update") for backend in ("fsdp", "fsdp_grad_op")),
    *((backend, {"optimizer": "muon"}, "expected 2, got 1") for backend in ("zero1", "zero2", "zero3")),
    ("fsdp2", {"dp_replicate_size": 3}, "ZeroDivisionError: integer modulo by zero"),
    ("fsdp2", {"reshard_after_forward": 2}, "reshard_after_forward: requested 2, observed True"),
    ("fsdp2", {"offload": "optimizer"}, "offload: requested optimizer, observed params"),
    # torch built for a CPU, and for CUDA
    ("fsdp", {"offload": "params"}, "Cannot access accelerator device when none is available | Found no NVIDIA driver"),
]
IGNORED = [
    ("ddp", {"offload": "params"}),
    ("ddp", {"reshard_after_forward": False}),
    ("ddp", {"zero_overlap_comm": True}),
]


def run(bench: FaultBench, cells: list[tuple[str, dict[str, Any]]], *options: str, **content: Any) -> list[Result]:
    for config, text in CONFIGS.items():
        (bench.folder / f"{config}.yaml").write_text(yaml.safe_dump(text))
    (bench.folder / "autocasts.json").write_text(json.dumps(AUTOCASTS))
    own = {config: {"name": config, "config_file": f"{config}.yaml"} for config in CONFIGS}
    include = [{"backend": own.get(backend, backend), "batch": 2, **changes} for backend, changes in cells]
    matrix = bench.matrix(matrix={}, include=include, measure=FEW, **content)
    bench.start("run", matrix, "--out", str(bench.folder / "run"), *options).communicate(timeout=600)
    results = bench.results()
    assert len(results) == len(cells)
    return results


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """By backend and settings, as `key` writes them."""
    cells = [(backend, changes) for backend, changes, _ in FAILS] + IGNORED
    cells += [(config, FP32 if config == "autocasts" else {}) for config in CONFIGS] + [("ddp", {})]
    bench = Unrefused(tmp_path_factory.mktemp("unrefused"))
    found = run(bench, cells, workload={"name": "checkpointed:Checkpointed"})
    return {key(backend, changes): result for (backend, changes), result in zip(cells, found, strict=True)}


def key(backend: str, changes: dict[str, Any]) -> str:
    return f"{backend} {json.dumps(changes)}"


@pytest.mark.parametrize(("backend", "changes", "says"), FAILS)
def test_a_forbidden_cell_fails(results: dict[str, Result], backend: str, changes: dict[str, Any], says: str) -> None:
    result = results[key(backend, changes)]
    assert backends.forbids(result.attempt.cell, "cpu")
    assert isinstance(result.outcome, Failed)
    assert any(words in result.outcome.reason for words in says.split(" | ")), result.outcome.reason


@pytest.mark.parametrize(("backend", "changes"), IGNORED)
def test_an_option_of_another_backend_would_do_nothing(
    results: dict[str, Result], backend: str, changes: dict[str, Any]
) -> None:
    result, plain = results[key(backend, changes)], results[key(backend, {})]
    assert backends.forbids(result.attempt.cell, "cpu")
    assert regime_and_losses(result) == regime_and_losses(plain)


@pytest.mark.parametrize("config", SWITCHES)
def test_loading_switches_fail_where_they_are_forbidden_and_only_there(results: dict[str, Result], config: str) -> None:
    result = results[key(config, {})]
    forbidden = backends.forbids(result.attempt.cell, "cpu") is not None
    assert forbidden == isinstance(result.outcome, Failed)
    if isinstance(result.outcome, Failed):
        assert "no available devices" in result.outcome.reason or "sync_module_states" in result.outcome.reason


@pytest.mark.parametrize(
    ("config", "plain"),
    [("recomputes", "plain_fsdp2"), ("compiles", "plain_fsdp2")],
)
def test_a_result_could_not_show_what_a_config_may_not_set(results: dict[str, Result], config: str, plain: str) -> None:
    assert regime_and_losses(results[key(config, {})]) == regime_and_losses(results[key(plain, {})])


def test_autocast_computes_in_another_dtype_than_the_weights(results: dict[str, Result]) -> None:
    outcome = results[key("autocasts", FP32)].outcome
    assert isinstance(outcome, Failed)
    assert "matmul_dtype: requested float32, observed bfloat16" in outcome.reason


def regime_and_losses(result: Result) -> tuple[Regime, tuple[float, ...]]:
    assert isinstance(result.outcome, Ok), result.outcome
    rank = result.outcome.ranks[0]
    return rank.regime.model_copy(update={"matmul_shares": None}), rank.losses


@pytest.mark.parametrize(
    ("isolation", "names"), [("fork", tuple(backends.BACKENDS)), ("launch", ("ddp", "fsdp", "fsdp2", "zero2"))]
)
def test_on_a_cpu_one_process_is_enough_for_every_backend(
    tmp_path: Path, isolation: str, names: tuple[str, ...]
) -> None:
    """It was refused once. In launches of their own, one of each family."""
    cells: list[tuple[str, dict[str, Any]]] = [(backend, {}) for backend in names]
    found = run(Unrefused(tmp_path), cells, "--isolation", isolation, launch={"num_processes": 1})
    losses = [regime_and_losses(result)[1] for result in found]
    assert losses == [pytest.approx(losses[0], rel=0.02)] * len(found)


def test_accelerate_starts_one_process_for_multi_cpu(tmp_path: Path) -> None:
    config = {"distributed_type": "MULTI_CPU", "num_processes": 2, "use_cpu": True, "num_machines": 1}
    (tmp_path / "accelerate.yaml").write_text(yaml.safe_dump(config))
    script = tmp_path / "world.py"
    script.write_text("import accelerate; print('world', accelerate.PartialState(cpu=True).num_processes)")
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(tmp_path / "accelerate.yaml")]
    done = subprocess.run([*launch, str(script)], capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout.split() == ["world", "1"]
