"""Faults on a real Slurm: what is finished stays, what was interrupted goes once to another job, nothing is left."""

import os
import signal
import time
from collections.abc import Callable

import psutil
import pytest
from cluster import Cluster
from harness import server_states, wait_for
from runs import SLOW_S, SlurmBench

pytestmark = pytest.mark.jobs


def scancel(slurm: Cluster, job: str) -> None:
    slurm("scancel", job)


def node_down(slurm: Cluster, job: str) -> None:
    node = slurm("squeue", "-h", "-j", job, "-o", "%N").strip()
    slurm("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")


def time_is_up(slurm: Cluster, job: str) -> None:
    slurm("scontrol", "update", f"JobId={job}", "EndTime=now")


def resume_nodes(slurm: Cluster) -> None:
    for node in ("n1", "n2"):
        slurm("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)
    wait_for(lambda: slurm("sinfo", "-h", "-r", "-t", "idle", "-o", "%D").strip() == "2")


@pytest.mark.parametrize(
    ("strike", "state", "steps"),
    [(scancel, "CANCELLED", 30), (node_down, "NODE_FAIL", 30), (time_is_up, "TIMEOUT", 200)],
)
def test_a_lost_job_costs_one_attempt_a_second_try(
    bench: SlurmBench, slurm: Cluster, strike: Callable[[Cluster, str], None], state: str, steps: int
) -> None:
    matrix = bench.three_turns(steps=steps)  # Slurm looks at time limits twice a minute
    process = bench.start("run", matrix, "--launcher", "slurm", "--out", str(bench.out))
    bench.slow_attempt()
    [first] = bench.job_ids()
    before = bench.finished()
    assert len(before) == 1
    strike(slurm, first)
    output, _ = process.communicate(timeout=300)
    resume_nodes(slurm)
    assert process.returncode == 0, output
    first, second = bench.job_ids()
    assert f"job {first} ended with {state}" in output
    assert bench.end_of_job(first)["state"] == state
    assert bench.end_of_job(second)["state"] == "DONE"
    results = bench.by_sleep()
    assert [result.outcome.kind for result in results.values()] == ["ok"] * 3
    assert {file: file.read_bytes() for file in before} == before
    assert {sleep_s: result.retried for sleep_s, result in results.items()} == {
        0.0: None,
        SLOW_S: results[SLOW_S].retried,
        0.001: None,
    }
    assert f"infrastructure: the Slurm job {first} ended with {state}" in (results[SLOW_S].retried or "")
    assert len(bench.tried_again()) == 1
    wait_for(lambda: not bench.left())


def test_an_attempt_that_is_lost_twice_has_failed_and_the_others_go_on(bench: SlurmBench, slurm: Cluster) -> None:
    process = bench.start("run", bench.three_turns(), "--launcher", "slurm", "--out", str(bench.out))
    seen: dict[object, int] = {}
    for number in range(2):
        folder = bench.slow_attempt(seen)
        seen = {folder / "spec.json": (folder / "spec.json").stat().st_mtime_ns}
        slurm("scancel", bench.job_ids()[number])
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 1, output
    results = bench.by_sleep()
    lost = results[SLOW_S]
    assert lost.outcome.kind == "failed"
    assert lost.outcome.fault == "infrastructure"
    assert "ended with CANCELLED" in lost.outcome.reason
    assert [result.outcome.kind for sleep_s, result in results.items() if sleep_s != SLOW_S] == ["ok", "ok"]
    bench.run(bench.three_turns(), expect=1)
    assert len(bench.job_ids()) == 3  # there is no third try


def test_a_controller_that_is_away_ends_nothing(bench: SlurmBench, slurm: Cluster) -> None:
    process = bench.start("run", bench.three_turns(steps=150), "--launcher", "slurm", "--out", str(bench.out))
    bench.slow_attempt()
    controller = slurm.daemon("slurmctld")
    controller.send_signal(signal.SIGSTOP)
    try:
        time.sleep(30)
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
        resume_nodes(slurm)
    wait_for(lambda: not bench.left(), 60)
