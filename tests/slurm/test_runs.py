"""The same matrix on one machine, on one node and on two: one job, the same losses, and resumed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import Cluster
from harness import HERE, ONE_THREAD, ROOT, Bench
from runs import SlurmBench, losses

from bench.store.run_folder import Store
from bench.store.spool import read_ranks

pytestmark = pytest.mark.jobs

BACKENDS = ["ddp", "fsdp2", "zero2", "single"]


def test_the_fastest_setting_is_found_in_one_job(bench: SlurmBench) -> None:
    matrix = bench.matrix(
        workload={"name": "toy:Toy"},
        matrix={"backend": ["ddp", "fsdp"], "sleep_s": [0.02, 0.3, 0.6], "batch": 2},
        choices=["backend", "sleep_s"],
        measure={"warmup_steps": 1, "steps": 3, "phase_steps": 0},
    )
    output = bench.run(matrix, "--best", "--settle", "50%")
    best = bench.store().best()
    assert best.ended == "certified"
    assert "sleep_s=0.02" in best.answers[0].name
    assert len(bench.job_ids()) == 1
    assert "o setting of 6 can be more than " in output
    assert "not everything is measured" not in output


@pytest.fixture(scope="module")
def on_one_node(tmp_path_factory: pytest.TempPathFactory, slurm: Cluster) -> SlurmBench:
    """A run of two ranks on one node, the same on two nodes, and the same on this machine without Slurm."""
    bench = SlurmBench(tmp_path_factory.mktemp("runs"), slurm)
    matrix = bench.matrix(matrix={"backend": BACKENDS, "batch": 2})
    bench.run(matrix)
    bench("run", matrix, "--launcher", "slurm", "--out", str(bench.folder / "two"), "--nodes", "2")
    Bench.__call__(bench, "run", matrix, "--out", str(bench.folder / "local"))
    return bench


def test_one_job_measures_all_attempts(on_one_node: SlurmBench) -> None:
    assert len(on_one_node.job_ids()) == 1
    assert [result.outcome.kind for result in on_one_node.store().results()] == ["ok"] * 4


def test_the_losses_are_those_of_a_local_run(on_one_node: SlurmBench) -> None:
    local, one, two = (on_one_node.results(name) for name in ("local", "run", "two"))
    expected = losses(Store(on_one_node.folder / "local"))
    for name in ("run", "two"):
        found = losses(Store(on_one_node.folder / name))
        assert found == {backend: pytest.approx(series, rel=1e-6) for backend, series in expected.items()}
    assert len(local) == len(one) == len(two) == 4


def test_one_node_is_the_cell_of_a_local_run_and_two_are_another(on_one_node: SlurmBench) -> None:
    local, one, two = (
        {result.attempt.cell.backend: result for result in on_one_node.results(name)}
        for name in ("local", "run", "two")
    )
    for backend in BACKENDS:
        assert local[backend].attempt.cell.id == one[backend].attempt.cell.id
        assert (one[backend].attempt.cell.id == two[backend].attempt.cell.id) == (backend == "single")
    assert [rank.node for rank in one["ddp"].outcome.ranks] == [None, None]
    assert [rank.node for rank in two["ddp"].outcome.ranks] == ["n1", "n2"]
    assert one["ddp"].outcome.ranks[0].regime.ranks_per_node == 2
    assert [rank.regime.ranks_per_node for rank in two["ddp"].outcome.ranks] == [1, 1]


def test_the_report_names_the_node_of_each_rank(on_one_node: SlurmBench) -> None:
    report = (on_one_node.folder / "two" / "report-full.md").read_text()
    assert "| n1, n2 |" in report
    assert "2 × 1" in report


def test_the_same_command_finds_everything_measured(on_one_node: SlurmBench) -> None:
    before = on_one_node.finished()
    output = on_one_node.run(on_one_node.matrix(matrix={"backend": BACKENDS, "batch": 2}))
    assert "What to run" in output
    assert "submitted" not in output  # nobody waits for a job that has nothing to do
    assert len(on_one_node.job_ids()) == 1
    assert on_one_node.finished() == before


def test_the_command_of_an_attempt_on_two_nodes_runs_it_again(on_one_node: SlurmBench) -> None:
    two = Store(on_one_node.folder / "two")
    [attempt] = [one.attempt for one in two.results() if one.attempt.cell.backend == "fsdp2"]
    command, again = two.folder(attempt) / "command.sh", on_one_node.folder / "again"
    environment = {**os.environ, **on_one_node.slurm.environment, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    allocated = ["salloc", "--nodes=2", "--exclusive", "sh", str(command), str(again)]
    again.mkdir()
    for _ in range(2):  # the second time into the same folder
        done = subprocess.run(allocated, cwd=HERE, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    first, second = read_ranks(two.folder(attempt), 2), read_ranks(again, 2)
    assert [rank.losses for rank in first] == [rank.losses for rank in second]
    assert [rank.node for rank in second] == ["n1", "n2"]


def test_the_shell_of_salloc_measures_only_on_a_node_of_its_job(bench: SlurmBench, slurm: Cluster) -> None:
    matrix = bench.matrix(matrix={"backend": ["ddp", "single"], "batch": 2})
    inside = ["run", matrix, "--launcher", "srun", "--nodes", "2", "--out", str(bench.out)]
    environment = {**os.environ, **slurm.environment, **ONE_THREAD, "PYTHONPATH": str(ROOT)}
    said = []
    for shell in ([], ["srun", "--nodes=1", "--ntasks=1"]):
        command = ["salloc", "--nodes=2", "--exclusive", *shell, sys.executable, "-m", "bench.cli", *inside]
        done = subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True, check=False)
        said.append((done.returncode, done.stdout + done.stderr))
    (refused, why), (measured, output) = said
    assert refused == 2, why
    assert "this shell is not on a node of the job" in why
    assert "srun --nodes=1 --ntasks=1 --pty bash" in why
    assert measured == 0, output
    assert [result.outcome.kind for result in bench.store().results()] == ["ok", "ok"]
