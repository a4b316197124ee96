"""Training on a real GPU: every backend, its regime, its losses and its times."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from checks import HARDWARE
from harness import ROOT, Bench, account_of, server_states

from bench import workloads
from bench.backends import BACKENDS
from bench.launch import attempt_files
from bench.launch.environment import added_environment, launch_environment
from bench.machine import gpus
from bench.records.cell import Attempt, Cell, Measure
from bench.records.outcome import Ok, Result
from bench.records.phases import PHASE_NAMES, Stage
from bench.records.rank_outcome import RankOk
from bench.store import spool

FEW = ("measure.warmup_steps=2", "measure.steps=5", "measure.phase_steps=3")
MATRIX = str(ROOT / "matrices/backends.yaml")
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
Found = Callable[..., None]


def of_each(bench: Bench, name: str, ranks: int, *more: str, **environment: Any) -> dict[str, RankOk]:
    """The first rank of each backend, with the bundled policy."""
    settings = [f"launch.num_processes={ranks}", "workload.preset=tiny", *FEW, *more]
    bench("run", MATRIX, *settings, "--out", str(bench.folder / name), cwd=ROOT, **environment)
    return {result.attempt.cell.backend: first(result) for result in bench.results(name)}


def of_one(bench: Bench, backend: str, *more: str, **environment: Any) -> Result:
    """One backend, with the bundled policy, in a world of one."""
    policy = {"name": "pi07", "preset": "tiny"}
    matrix = bench.matrix(workload=policy, matrix={"backend": backend, "batch": 2}, launch={"num_processes": 1})
    folder = "-".join(["run", *more])
    bench("run", matrix, *FEW, *more, "--out", str(bench.folder / folder), **environment)
    [result] = bench.results(folder)
    return result


def first(result: Result) -> RankOk:
    assert isinstance(result.outcome, Ok), result.outcome
    return result.outcome.ranks[0]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """A run of all backends, each in a world of one."""
    bench = Bench(tmp_path_factory.mktemp("alone"))
    of_each(bench, "run", 1)
    return bench


def test_children_compute_and_servers_do_not(alone: Bench, found: Found) -> None:
    """Forked children compute, and their servers stay able to fork."""
    assert {result.isolation for result in alone.results()} == {"fork"}
    states = server_states(alone.folder / "run")
    found(attempts=len(alone.results()))
    assert [state["unforkable"] for state in states] == [None]
    for result in alone.results():
        memory = first(result).memory
        if memory.peak_reserved_bytes is not None:
            assert memory.peak_allocated_bytes is not None
            assert 0 < memory.peak_allocated_bytes <= memory.peak_reserved_bytes < memory.capacity_bytes


def test_a_module_that_initializes_cuda_is_found_before_the_fork(bench: Bench) -> None:
    """A module that initializes CUDA when it is imported is found before the fork, and every attempt launched alone."""
    if HARDWARE.device != "cuda":
        pytest.skip("needs CUDA to initialize")
    matrix = bench.matrix(workload={"name": "inits_cuda_for_real:Toy"}, matrix={"backend": "single", "batch": 2})
    output = bench("run", matrix, "--out", str(bench.folder / "run"))
    assert "a module of the workload initializes CUDA" in output
    assert [(result.outcome.kind, result.isolation) for result in bench.results()] == [("ok", "launch")]


def test_first_losses_are_those_of_a_cpu(alone: Bench, bench: Bench, found: Found) -> None:
    """All backends, in a world of one, show the requested regime and the first loss that a CPU computes."""
    here = {result.attempt.cell.backend: first(result) for result in alone.results()}
    cpu = of_each(bench, "cpu", 1, **NO_GPU)
    assert set(here) == set(cpu) == set(BACKENDS)
    apart = {backend: abs(here[backend].warmup_losses[0] / cpu[backend].warmup_losses[0] - 1) for backend in here}
    found(largest_difference=f"{max(apart.values()):.2e}", first_loss=f"{here['single'].warmup_losses[0]:.4f}")
    assert max(apart.values()) < 0.01


@pytest.mark.parametrize("named", ["index", "uuid"])
def test_deepspeed_in_a_child(bench: Bench, found: Found, named: str) -> None:
    """DeepSpeed trains in a forked child, whatever CUDA_VISIBLE_DEVICES names its GPU by."""
    if HARDWARE.device != "cuda":
        pytest.skip("needs a GPU to name")
    visible = "0" if named == "index" else gpus.visible(os.environ)[0].uuid
    result = of_one(bench, "zero2", CUDA_VISIBLE_DEVICES=visible)
    found(loss=f"{first(result).losses[-1]:.4f}")
    assert result.isolation == "fork"


@pytest.mark.gpus(2)
def test_all_backends_on_all_devices(bench: Bench, found: Found) -> None:
    """All backends train on all devices, to the same losses."""
    ranks = max(2, HARDWARE.devices)
    every = of_each(bench, "run", ranks)
    losses = {backend: rank.losses[-1] for backend, rank in every.items() if backend != "single"}
    spread = max(losses.values()) / min(losses.values()) - 1
    found(ranks=ranks, spread=f"{spread:.2e}")
    assert spread < 0.02


def test_phases_sum_to_the_total(alone: Bench, found: Found) -> None:
    """The phases sum to the timed total within 2 %."""
    off: dict[str, float] = {}
    for result in alone.results():
        times_s = first(result).phase_times_s
        sums_s = [sum(parts) for parts in zip(*(times_s[phase] for phase in PHASE_NAMES), strict=True)]
        off[result.attempt.cell.backend] = median(a / b for a, b in zip(sums_s, times_s["total"], strict=True)) - 1
    found(largest=f"{max(map(abs, off.values())):.2%}")
    assert max(map(abs, off.values())) < 0.02


def test_events_agree_with_the_clock(alone: Bench, found: Found) -> None:
    """The device's events sum to at most the wall time of the measured steps, and the account to the whole."""
    shares = []
    for result in alone.results():
        shares.append(sum(first(result).step_times_s) / account_of(result).parts_s[Stage.MEASURE])
    host = {median(times) for result in alone.results() if (times := first(result).host_times_s)}
    found(least=f"{min(shares):.1%}", most=f"{max(shares):.1%}", host_ms=f"{1e3 * max(host, default=0):.1f} at most")
    assert 0.5 < min(shares) <= max(shares) <= 1.01


def test_kernels_are_named(alone: Bench, found: Found) -> None:
    """The regime names the kernels that torch's attention chose."""
    kernels = {result.attempt.cell.backend: first(result).regime.attention_kernels for result in alone.results()}
    found(kernels=", ".join(kernels["single"] or ()))
    assert all(kernels.values())
    assert len(set(kernels.values())) == 1


def test_flex_attention_trains(bench: Bench, found: Found) -> None:
    """FlexAttention has the losses of torch's fused kernel, and the regime checks hold."""
    sdpa, flex = (first(of_one(bench, "single", f"workload.attention={name}")).losses for name in ("sdpa", "flex"))
    found(sdpa=f"{sdpa[-1]:.4f}", flex=f"{flex[-1]:.4f}")
    assert flex == pytest.approx(sdpa, rel=0.02)


def test_compiled_units_train(bench: Bench, found: Found) -> None:
    """Units that are compiled train, without another graph while measured."""
    compiled = first(of_one(bench, "fsdp2", "train.compile=unit")).compilation
    assert compiled is not None
    found(graphs=compiled.graphs, seconds=f"{compiled.compile_s:.0f}")
    assert compiled.graphs > 0
    assert compiled.graphs_while_measured == 0


def test_a_step_costs_what_it_costs_without_bench(bench: Bench, found: Found) -> None:
    """A step takes as long as in the same loop written by hand on accelerate, within 5 %."""
    kind, device = workloads.load("pi07"), HARDWARE.device
    cell = Cell(
        backend="single",
        workload="pi07",
        options=kind.Config().model_dump(mode="json"),
        num_processes=1,
        mixed_precision="bf16",
        measure=Measure(warmup_steps=5, steps=10, phase_steps=0),
    )
    added = added_environment(1, HARDWARE, os.environ)
    attempt = Attempt(cell=cell, batch_per_rank=8)
    for name, text in attempt_files.files(attempt, kind.units, device, added, str(bench.folder)).items():
        spool.write_text(bench.folder / name, text)
    bare = ROOT / "tests/perf/bare.py"
    command: list[Any] = [sys.executable, "-m", "accelerate.commands.launch", "--main_process_port", "0"]
    command += ["--config_file", bench.folder / "accelerate.yaml", bare, bench.folder]
    environment = launch_environment({**os.environ, "PYTHONPATH": str(ROOT)}, added, Path(sys.executable).parent)
    subprocess.run(command, env=environment, check=True, timeout=500)
    bench_s, bare_s = json.loads((bench.folder / "bare0.json").read_text())
    ratio = median(a / b for a, b in zip(bench_s, bare_s, strict=True))
    found(ratio=f"{ratio:.3f}", step_ms=f"{1e3 * median(bare_s):.1f}")
    assert ratio < 1.05
