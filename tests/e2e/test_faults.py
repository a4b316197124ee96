"""Faults before and around the ranks. Faults of the ranks themselves are in tests/faults."""

import time

import pytest
from harness import Bench, wait_for

AXES = {"matrix": {"backend": "ddp", "batch": 2}}


def outcomes(bench: Bench) -> list[tuple[str, str]]:
    return [(r.outcome.kind, getattr(r.outcome, "reason", "")) for r in bench.results()]


def test_out_of_memory_stops_the_cell_early_and_stays_in_the_table(bench: Bench) -> None:
    matrix = bench.matrix(workload={"name": "toy:Toy", "fault": "allocate"}, matrix={"backend": "ddp", "batch": [1, 2]})
    output = bench("run", matrix, "--out", str(bench.folder / "run"))
    assert [kind for kind, _ in outcomes(bench)] == ["oom", "skipped"]
    assert "stopped early: batch 1 ran out of memory" in output


def test_zero3_with_checkpointing_is_skipped_visibly(bench: Bench) -> None:
    matrix = bench.matrix(matrix={"backend": "zero3", "grad_ckpt": [True], "batch": 2})
    output = bench("run", matrix, "--out", str(bench.folder / "run"))
    assert outcomes(bench)[0][0] == "skipped"
    assert "ZeRO-3 with gradient checkpointing" in output


@pytest.mark.parametrize("after_s", [0.0, 0.1, 0.5])
def test_a_run_that_is_killed_while_its_servers_start_leaves_nothing(bench: Bench, after_s: float) -> None:
    process = bench.start("run", bench.matrix(**AXES), "--out", str(bench.folder / "run"))
    wait_for(lambda: len(bench.processes()) >= 5)  # bench, the leash, the launcher and two ranks
    time.sleep(after_s)
    process.kill()
    process.wait()
    bench.assert_gone(within_s=5)


def test_a_launcher_that_is_killed_at_once_leaves_nothing(bench: Bench) -> None:
    process = bench.start("run", bench.matrix(**AXES), "--out", str(bench.folder / "run"))
    wait_for(lambda: len(bench.processes()) >= 3)  # bench, the leash and the launcher
    process.kill()
    process.wait()
    bench.assert_gone(within_s=5)


def test_a_module_that_computes_on_import_is_left_for_own_launches(bench: Bench) -> None:
    matrix = bench.matrix(workload={"name": "computes:Toy"}, matrix={"backend": "single", "batch": 2})
    output = bench("run", matrix, "--out", str(bench.folder / "run"), OMP_NUM_THREADS="2")
    assert "computes or starts threads when it is imported" in output
    assert outcomes(bench) == [("ok", "")]


def test_variables_of_another_launcher_change_nothing(bench: Bench) -> None:
    foreign = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "FSDP_IGNORED_MODULES": ".*", "MASTER_PORT": "1"}
    matrix = bench.matrix(matrix={"backend": "fsdp", "batch": 2})
    bench("run", matrix, "--out", str(bench.folder / "run"), **foreign)
    [fsdp] = bench.results()
    assert fsdp.outcome.kind == "ok"
    assert fsdp.outcome.ranks[0].regime.sharded_parameters == fsdp.outcome.ranks[0].regime.parameters  # type: ignore[union-attr]


def test_servers_that_initialise_cuda_are_left_for_own_launches(bench: Bench) -> None:
    matrix = bench.matrix(workload={"name": "inits_cuda:Toy"}, matrix={"backend": "ddp", "batch": 2})
    output = bench("run", matrix, "--out", str(bench.folder / "run"))
    assert "a module of the workload initialises CUDA" in output
    assert outcomes(bench) == [("ok", "")]
    assert bench.results()[0].isolation == "launch"


def test_rerun_measures_failed_attempts_again_and_keeps_the_old_ones(bench: Bench) -> None:
    matrix = bench.matrix(workload={"name": "toy:Toy", "fault": "raise"}, matrix={"backend": "ddp", "batch": [1, 2]})
    run = ("run", matrix, "--out", str(bench.folder / "run"))
    bench(*run, expect=1)
    assert "2 of them finished before" in bench(*run, expect=1)
    started = time.time()
    bench(*run, "--rerun", "failed", expect=1)
    assert all(f.stat().st_mtime > started for f in (bench.folder / "run/attempts").glob("*/*/result.json"))
    assert len(list((bench.folder / "run/superseded").glob("*/*/result.json"))) == 2
