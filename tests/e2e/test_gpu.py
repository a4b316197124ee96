"""Tests that need a CUDA device. One GPU is enough: `single`, and the other backends with one rank."""

import pytest
from harness import ROOT, Bench

from bench import machine
from bench.records.outcome import Ok

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(machine.detect().device != "cuda", reason="needs a CUDA device and its driver"),
]

ONE = ("launch.num_processes=1", "measure.warmup_steps=2", "measure.steps=5", "measure.phase_steps=3")


def test_every_backend_measures_on_one_gpu(bench: Bench) -> None:
    matrix = str(ROOT / "matrices/backends.yaml")
    bench("run", matrix, *ONE, "workload.preset=tiny", "--out", str(bench.folder / "run"), cwd=ROOT)
    for result in bench.results():
        assert isinstance(result.outcome, Ok), result.outcome
        [rank] = result.outcome.ranks
        assert rank.memory.peak_allocated_bytes is not None
        assert rank.memory.peak_reserved_bytes is not None
        assert 0 < rank.memory.peak_allocated_bytes <= rank.memory.peak_reserved_bytes < rank.memory.capacity_bytes
        assert result.isolation == "fork"


def test_true_cuda_out_of_memory(bench: Bench) -> None:
    matrix = bench.matrix(
        workload={"name": "toy:Toy", "width": 8192},
        matrix={"backend": "single", "batch": [1, 1_000_000]},
        launch={"memory_limit": "6GiB"},
    )
    bench("run", matrix, "--out", str(bench.folder / "run"))
    assert [result.outcome.kind for result in bench.results()] == ["ok", "oom"]


def test_a_module_that_initialises_cuda_is_found_before_the_fork(bench: Bench) -> None:
    matrix = bench.matrix(workload={"name": "inits_cuda_for_real:Toy"}, matrix={"backend": "single", "batch": 2})
    output = bench("run", matrix, "--out", str(bench.folder / "run"))
    assert "a module of the workload initialises CUDA" in output
    assert [(result.outcome.kind, result.isolation) for result in bench.results()] == [("ok", "launch")]
