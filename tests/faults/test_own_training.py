"""A training script outside bench: it is searched to a true OOM, launched on two ranks, and its refusals are true."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import yaml
from examples import cell
from harness import Bench

from bench import backends
from bench.launch.environment import launch_environment
from bench.launch.script_launch import script_environment
from bench.machine import detect
from bench.records.outcome import Scripted
from bench.records.script import Script
from bench.records.verdict import Verdict
from bench.store.run_folder import Store

HERE = Path(__file__).parent
WORDS = ["own_training.py", "--batch", "{batch}", "--width", "{width}", "--warmup", "{warmup_steps}"]
WORDS += ["--steps", "{steps}", "--out", "{out}"]
LAUNCH = ["accelerate", "launch", "--config_file", "{accelerate_config}"]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    runner = Bench(tmp_path)
    yield runner
    psutil.wait_procs(runner.processes(), timeout=5)
    runner.assert_gone()


def matrix(to: Path, command: list[str], **content: object) -> str:
    file = to / "training.yaml"
    given = {
        "command": command,
        "folder": str(HERE),
        "result": {"step_time_s": "step.mean_s", "num_processes": "world"},
    }
    file.write_text(yaml.safe_dump({**given, "measure": {"warmup_steps": 1, "steps": 2, "launches": 1}, **content}))
    return str(file)


def test_a_search_to_a_true_oom(bench: Bench, tmp_path: Path) -> None:
    """An eager process of torch and accelerate takes some 0.5 GiB; a sample of this width about 30 KiB in a step."""
    axes = {"matrix": {"width": 512, "batch": "probe"}, "probe": {"granularity": 10_000, "max_batch": 40_000}}
    file = matrix(tmp_path, ["python", *WORDS], launch={"memory_limit": "1200MiB"}, **axes)
    shown = bench("run", file, "--out", str(tmp_path / "run"), OMP_NUM_THREADS="2")
    [probe] = Store(tmp_path / "run").probes()
    assert isinstance(probe.found, Verdict), probe.found
    assert probe.found.certificate == "next_fails"
    out_of_memory = [result.outcome for result in bench.results() if result.outcome.kind == "oom"]
    assert {getattr(outcome, "source", None) for outcome in out_of_memory} == {"cpu_allocator"}
    assert re.search(f"probed  (best|safe) batch {probe.found.advised.batch}: ", shown)


def test_two_ranks_of_an_accelerate_launch(bench: Bench, tmp_path: Path) -> None:
    file = matrix(tmp_path, [*LAUNCH, *WORDS], matrix={"backend": ["ddp", "fsdp2"], "width": 64, "batch": 4})
    bench("run", file, "--out", str(tmp_path / "run"))
    ddp, fsdp = bench.results()
    assert isinstance(ddp.outcome, Scripted)
    assert ddp.attempt.cell.num_processes == 2  # the script says so too, else it had failed
    assert "ran as DistributedType.MULTI_CPU" in (tmp_path / f"run/attempts/{ddp.attempt.slug}/script.log").read_text()
    assert fsdp.outcome.kind == "skipped"


@pytest.mark.parametrize("backend", ["fsdp", "fsdp2", "zero2"])
def test_what_bench_refuses_a_script_on_a_cpu_silently_runs_as_ddp(backend: str, tmp_path: Path) -> None:
    refused = cell(backend, script=Script(command=tuple(LAUNCH)), mixed_precision="no")
    assert backends.forbids(refused, "cpu")
    (tmp_path / "accelerate.yaml").write_text(yaml.safe_dump(backends.accelerate_config(refused, ("Linear",), "cpu")))
    values = {"batch": 4, "width": 64, "warmup_steps": 1, "steps": 2, "out": str(tmp_path / "out.json")}
    command = [
        word.format_map(values | {"accelerate_config": str(tmp_path / "accelerate.yaml")}) for word in [*LAUNCH, *WORDS]
    ]
    added = script_environment(refused, detect())
    environment = launch_environment(os.environ, added)
    command[2:2] = ["--main_process_port", "0"]
    done = subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert "ran as DistributedType.MULTI_CPU, holds 100% of the parameters" in done.stdout, done.stderr
