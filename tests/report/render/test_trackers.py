"""`bench export`, read back by each tracker's own reader."""

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from examples import ok, result, stored

from bench.records.outcome import Oom

LOSS, STEP_S = 2.0, 0.2
OPTIONS = [f"option_{number}" for number in range(120)]
"""MLflow takes 100 parameters in one request, and its client as many requests as it needs."""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two cells of a run: one measured, one out of memory."""
    axes = dict.fromkeys(OPTIONS, 1)
    measured = result(ok((0.1, 0.1, 0.1), (STEP_S, STEP_S, STEP_S)), batch=2, axes=axes)
    return stored(tmp_path / "mine", [measured, result(Oom(rank=1, phase="bwd", reason="x"), batch=4, axes=axes)])


def said(folder: Path, *command: str, expect: int = 0) -> str:
    """What a command of this environment prints."""
    environment = {**os.environ, "TRACKIO_DIR": str(folder / "kept"), "WANDB_ERROR_REPORTING": "false"}
    for name in ("MLFLOW_TRACKING_URI", "WANDB_MODE", "WANDB_DIR"):
        environment.pop(name, None)
    program = (
        [sys.executable, "-m", "bench.cli"] if command[0] == "bench" else [Path(sys.executable).parent / command[0]]
    )
    done = subprocess.run(
        [*program, *command[1:]], cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout if expect == 0 else done.stderr


def test_wandb_reads_its_runs(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    assert "2 runs in " in said(tmp_path, "bench", "export", "wandb", str(run))
    found: dict[int, dict[str, list[Any]]] = {}
    for file in tmp_path.glob("wandb/offline-run-*/*.wandb"):
        records = defaultdict(list)
        for line in said(tmp_path, "wandb", "leet", "inspect", "--json", str(file)).splitlines():
            record = json.loads(line)
            records[record["type"]].append(record.get(record["type"]))
        found[records["run"][0]["config"]["update"]["batch"]] = records
    measured, oom = found[2], found[4]
    assert (measured["run"][0]["display_name"], measured["run"][0]["project"]) == ("ddp, batch 2", "bench")
    summary = {name: value for record in measured["summary"] for name, value in record["update"].items()}
    check(measured["run"][0]["config"]["update"], summary)
    steps = [record["item"] for record in measured["history"]]
    assert steps[0]["loss"] == pytest.approx(LOSS)
    assert [step["step_time_s"] for step in steps if "step_time_s" in step] == pytest.approx([STEP_S] * 3)
    assert (oom["run"][0]["config"]["update"]["outcome"], oom["history"]) == ("oom", [])


def test_mlflow_reads_its_runs(run: Path, tmp_path: Path) -> None:
    mlflow: Any = pytest.importorskip("mlflow")
    assert "mlflow.db" in said(tmp_path, "bench", "export", "mlflow", str(run), "--project", "mine")
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.get_experiment_by_name("mine")
    found = {each.data.params["batch"]: each for each in client.search_runs([experiment.experiment_id])}
    measured, oom = found["2"], found["4"]
    assert measured.info.run_name == "ddp, batch 2"
    assert measured.info.status == "FINISHED"
    check({**measured.data.params, "batch": int(measured.data.params["batch"])}, measured.data.metrics)
    steps = client.get_metric_history(measured.info.run_id, "step_time_s")
    assert [step.value for step in sorted(steps, key=lambda step: step.step)] == pytest.approx([STEP_S] * 3)
    assert (oom.data.params["outcome"], oom.data.metrics.get("samples_per_s_global")) == ("oom", None)


def test_trackio_reads_its_runs(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("trackio")
    assert said(tmp_path, "bench", "export", "trackio", str(run)).startswith("2 runs in project bench of trackio;")

    def values(name: str) -> list[float]:
        of = ["--project", "bench", "--run", "ddp, batch 2", "--metric", name]
        return [
            value["value"] for value in json.loads(said(tmp_path, "trackio", "get", "metric", *of, "--json"))["values"]
        ]

    one = ["--project", "bench", "--json", "--run"]
    config = json.loads(said(tmp_path, "trackio", "get", "run", *one, "ddp, batch 2"))["config"]
    check(config, {"samples_per_s_global": values("samples_per_s_global")[0]})
    assert values("step_time_s") == pytest.approx([STEP_S] * 3)
    assert json.loads(said(tmp_path, "trackio", "get", "run", *one, "ddp, batch 4"))["config"]["outcome"] == "oom"


def check(config: dict[str, Any], metrics: dict[str, float]) -> None:
    """What each tracker must know of the measured cell."""
    assert {"backend": "ddp", "outcome": "ok", "batch": 2}.items() <= config.items()
    assert set(OPTIONS) <= set(config)
    assert metrics["samples_per_s_global"] == pytest.approx(2 * 2 / STEP_S)
