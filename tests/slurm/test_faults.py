"""Faults beside a job on a real Slurm: of its daemons, of a rank and of bench. Nothing is left."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from cluster import Cluster
from harness import server_states, wait_for
from runs import SLOW_S, SlurmBench

pytestmark = pytest.mark.jobs


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster that misses a node only after Slurm's own default."""
    running = Cluster(tmp_path / "cluster", node_timeout_s=300)
    yield running
    running.stop()


def test_a_node_that_is_gone_before_slurm_knows_it_costs_a_second_try(patient: Cluster, tmp_path: Path) -> None:
    bench = SlurmBench(tmp_path, patient)
    options = ("launch.hang_after_s=20", "--launcher", "slurm", "--nodes=2", "--out", str(bench.out))
    process = bench.start("run", bench.three_turns(steps=100), *options)
    bench.slow_attempt()
    on_node = [one for one in patient.processes() if one.environ().get("SLURMD_NODENAME") == "n2"]
    gone = [psutil.Process(patient.daemon("n2").pid), *on_node]
    assert len(gone) > 2
    for one in gone:
        one.suspend()
    try:
        wait_for(lambda: len(bench.job_ids()) == 2, 180)
    finally:
        for one in gone:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.resume()
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert "node n2 does not answer: this run leaves its job" in output
    results = bench.by_sleep()
    assert [result.outcome.kind for result in results.values()] == ["ok"] * 3
    assert "infrastructure: the Slurm job" in (results[SLOW_S].retried or "")
    assert len(bench.tried_again()) == 1
    wait_for(lambda: not bench.left(), 60)


def test_a_controller_that_is_away_ends_nothing(bench: SlurmBench, slurm: Cluster) -> None:
    process = bench.start("run", bench.three_turns(steps=240), "--launcher", "slurm", "--out", str(bench.out))
    bench.slow_attempt()
    controller = slurm.daemon("slurmctld")
    controller.send_signal(signal.SIGSTOP)
    try:
        time.sleep(50)  # squeue gives up after its own time-outs
    finally:
        controller.send_signal(signal.SIGCONT)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert "Slurm's controller does not answer; jobs go on" in output
    assert len(bench.job_ids()) == 1
    assert bench.tried_again() == []
    assert [result.retried for result in bench.by_sleep().values()] == [None] * 3


def test_a_killed_rank_is_a_result_and_the_job_goes_on(bench: SlurmBench, slurm: Cluster) -> None:
    process = bench.start("run", bench.three_turns(), "--launcher", "slurm", "--out", str(bench.out), "--nodes=2")
    bench.slow_attempt()
    child = server_states(bench.out)[1]["child"]
    os.kill(child, signal.SIGKILL)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 1, output
    results = bench.by_sleep()
    assert [result.outcome.kind for result in results.values()] == ["ok", "failed", "ok"]
    assert results[SLOW_S].outcome.reason.startswith("killed by SIGKILL")
    assert results[SLOW_S].outcome.rank == 1
    assert len(bench.job_ids()) == len(list((bench.out / "servers").iterdir())) == 1
    output = bench.run(bench.three_turns(), "--nodes=2", "--select=sleep_s=0.0")  # of this cell nothing has failed
    assert "2 other attempts of this run not shown here" in output
    assert len(bench.job_ids()) == 1
    wait_for(lambda: not bench.left())


def test_a_killed_bench_leaves_the_job_alone_and_the_same_command_follows_it(bench: SlurmBench) -> None:
    command = ("run", bench.three_turns(), "--launcher", "slurm", "--out", str(bench.out))
    process = bench.start(*command)
    bench.slow_attempt()
    process.kill()
    process.wait()
    before = bench.finished()
    output = bench(*command)
    [job] = bench.job_ids()
    assert f"job {job} of an earlier command goes on" in output
    assert "1/3 ddp sleep_s=0.0, batch 2: ok" in output  # what it wrote meanwhile, too
    assert {file: file.read_bytes() for file in before} == before
    assert bench.tried_again() == []


def test_processes_that_a_lost_slurmd_leaves_behind_end_by_themselves(bench: SlurmBench, slurm: Cluster) -> None:
    process = bench.start("run", bench.three_turns(steps=300), "--launcher", "slurm", "--out", str(bench.out))
    folder = bench.slow_attempt()
    [job] = bench.job_ids()
    node = slurm("squeue", "-h", "-j", job, "-o", "%N").strip()
    ranks = [psutil.Process(state["child"]) for state in server_states(bench.out)]
    slurm.daemon(node).kill()
    slurm.daemon(node).wait()
    try:
        wait_for(lambda: len(bench.job_ids()) == 2, 180)
        assert bench.end_of_job(job)["state"] == "NODE_FAIL"
        assert not any(rank.is_running() and rank.status() != psutil.STATUS_ZOMBIE for rank in ranks)
        bench.slow_attempt({folder / "spec.json": (folder / "spec.json").stat().st_mtime_ns - 1})
        slurm("scancel", *slurm.jobs())
        process.kill()
        process.wait()
    finally:
        slurm.start_node(node)
        slurm.resume_nodes()
    wait_for(lambda: not bench.left(), 60)
