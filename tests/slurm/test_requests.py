"""Requests: that can never run, that several jobs share, that end too soon, and that the user ends."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import cluster
import pytest
from cluster import Cluster
from harness import wait_for
from runs import SlurmBench

from bench.store.claims import owner_of


@pytest.fixture(scope="module")
def lenient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster that lets a job wait for ever, as many do."""
    if reason := cluster.missing():
        pytest.skip(reason)
    running = Cluster(tmp_path_factory.mktemp("lenient") / "cluster", enforce="NO")
    yield running
    running.stop()


REFUSED = [
    (["--nodes=5"], "More processors requested than permitted"),
    (["--partition=nope"], "Invalid partition name specified"),
    (["--partition=small", "--nodes=2"], "Node count specification invalid"),
    (["--constraint=a100"], "Invalid feature specification"),
    (["--gpus-per-node=8"], "Requested node configuration is not available"),
    (["--sbatch=--no-such-option"], "no-such-option"),
]
WAITS_FOR_EVER = [
    (["--nodes=5"], "PartitionConfig"),
    (["--partition=small", "--nodes=2"], "PartitionNodeLimit"),
    (["--partition=small", "--time=2:00:00"], "PartitionTimeLimit"),
]


def refused(bench: SlurmBench, options: list[str], reason: str) -> None:
    matrix = bench.matrix(matrix={"backend": "ddp", "batch": 2}, launch={"num_processes": "auto"})
    began_s = time.monotonic()
    output = bench.run(matrix, *options, expect=2)
    took_s = time.monotonic() - began_s
    assert f"--launcher slurm: Slurm: {'' if reason in str(REFUSED) else 'job'}" in output
    assert reason in output
    assert "Traceback" not in output
    assert took_s < 60  # the promise is 10 s on a machine with nothing else to do
    print(f"told in {took_s:.1f} s")
    wait_for(lambda: not bench.slurm.jobs())


@pytest.mark.parametrize(("options", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_slurms_refusal_is_told(bench: SlurmBench, options: list[str], reason: str) -> None:
    refused(bench, options, reason)


@pytest.mark.parametrize(("options", "reason"), WAITS_FOR_EVER, ids=[reason for _, reason in WAITS_FOR_EVER])
def test_a_job_that_would_wait_for_ever_is_told_and_taken_back(
    tmp_path: Path, lenient: Cluster, options: list[str], reason: str
) -> None:
    refused(SlurmBench(tmp_path, lenient), options, reason)


def test_a_wrong_workload_is_told_as_on_this_machine_and_no_job_is_left(bench: SlurmBench, slurm: Cluster) -> None:
    matrix = bench.matrix(workload={"name": "toy:Toy", "no_such_field": 1}, matrix={"backend": "ddp", "batch": 2})
    assert "no_such_field" in bench.run(matrix, expect=2)
    assert not bench.out.exists()


@pytest.mark.jobs
def test_a_job_that_waits_says_why(bench: SlurmBench, slurm: Cluster, tmp_path: Path) -> None:
    (tmp_path / "hold.sh").write_text("#!/bin/bash\nsleep 600\n")
    busy = slurm("sbatch", "--parsable", "--nodes=2", "--exclusive", str(tmp_path / "hold.sh"), "--output=/dev/null")
    process = bench.start("run", bench.three_turns(), "--launcher", "slurm", "--out", str(bench.out))
    for line in process.stdout:
        if "waits (Resources)" in line or "waits (Priority)" in line:
            break
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "detached; jobs go on" in output
    slurm("scancel", busy.strip())
    bench.slow_attempt()  # the detached job began when the nodes were free
    before = bench.finished()
    assert "1 job cancelled" in bench("cancel", str(bench.out))
    wait_for(lambda: not bench.left())
    assert slurm.jobs() == []
    assert "no job waits or runs" in bench("cancel", str(bench.out))
    output = bench.run(bench.three_turns())
    assert {file: file.read_bytes() for file in before} == before
    assert [result.retried for result in bench.by_sleep().values()] == [None] * 3  # the user ended it: no fault


@pytest.mark.jobs
@pytest.mark.parametrize("answer", ["c", "d"])
def test_on_a_terminal_ctrl_c_asks_what_becomes_of_the_jobs(bench: SlurmBench, slurm: Cluster, answer: str) -> None:
    terminal, inner = os.openpty()
    try:
        command = ["run", bench.three_turns(), "--launcher", "slurm", "--out", str(bench.out)]
        process = bench.start(*command, stdin=inner)
        wait_for(lambda: slurm("squeue", "-h", "-t", "R", "-o", "%i").split(), 60)
        process.send_signal(signal.SIGINT)
        os.write(terminal, f"{answer}\n".encode())
        output, _ = process.communicate(timeout=120)
    finally:
        os.close(terminal)
        os.close(inner)
    assert process.returncode == 130
    [job] = bench.job_ids()
    assert f"jobs {job}: detach, and let them go on, or cancel them?" in output
    assert ("cancelled" if answer == "c" else "detached") in output
    if answer == "c":
        assert slurm.jobs() == []
        assert bench.end_of_job(job)["asked"]
        wait_for(lambda: not bench.left())
    else:
        assert slurm.jobs() == [job]


@pytest.mark.jobs
def test_gpus_that_the_node_does_not_show_are_no_reason_to_measure_on_a_cpu(bench: SlurmBench) -> None:
    output = bench.run(bench.three_turns(), "--gpus-per-node=2", expect=2)  # files stand for the GPUs of this cluster
    assert "the first node of the job shows 0 of the 2 GPUs that were asked for" in output
    assert not list(bench.out.glob("attempts/*"))


@pytest.mark.jobs
def test_two_jobs_share_the_cells_and_each_cell_has_one_owner(bench: SlurmBench) -> None:
    meeting = bench.folder / "meeting"  # where a job that begins early waits for the other
    meeting.mkdir()
    matrix = bench.matrix(
        workload={"name": "shared:Shared", "meeting": str(meeting)},
        matrix={"backend": "single", "sleep_s": [0.05, 0.051, 0.052, 0.053], "batch": 2},
        measure={"warmup_steps": 1, "steps": 20, "phase_steps": 0},
    )
    bench.run(matrix, "--jobs", "2")
    results = bench.store().results()
    assert [result.outcome.kind for result in results] == ["ok"] * 4
    assert len(bench.job_ids()) == 2
    assert bench.tried_again() == []
    before = [result.started_at for result in results]
    bench.run(matrix, "--jobs", "2", "--rerun", "all")
    assert len(bench.tried_again()) == 4  # each again, once, by whichever job
    assert all(result.started_at > one for result, one in zip(bench.store().results(), before, strict=True))
    owners = [owner_of(bench.out, result.attempt.cell.slug) for result in results]
    assert set(owners) == set(bench.job_ids()[2:])


@pytest.mark.jobs
def test_the_variables_of_the_user_change_no_request(bench: SlurmBench, slurm: Cluster) -> None:
    matrix = bench.matrix(matrix={"backend": "ddp", "batch": 2})
    command = ("run", matrix, "--launcher", "slurm", "--nodes=2", "--time=25", "--out", str(bench.out))
    hiding = {"SQUEUE_STATES": "PENDING", "SCANCEL_STATE": "PENDING", "SLURM_TIME_FORMAT": "relative"}
    asking = {"SBATCH_TIMELIMIT": "1", "SBATCH_ARRAY_INX": "1-2", "SLURM_MEM_PER_CPU": "100"}
    bench(*command, **hiding, **asking)
    [job] = bench.job_ids()
    assert slurm("squeue", "-h", "-t", "all", "-j", job, "-o", "%i %l").split() == [job, "25:00"]
    assert [result.outcome.kind for result in bench.store().results()] == ["ok"]


@pytest.mark.jobs
def test_a_waiting_job_is_not_waited_for_once_all_is_measured(
    bench: SlurmBench, slurm: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "hold.sh").write_text("#!/bin/bash\nsleep 3600\n")
    busy = slurm("sbatch", "--parsable", "--exclusive", str(tmp_path / "hold.sh"), "--output=/dev/null").strip()
    matrix = bench.matrix(
        matrix={"backend": "single", "sleep_s": [0.1, 0.101], "batch": 2},
        measure={"warmup_steps": 1, "steps": 40, "phase_steps": 0},
    )
    process = bench.start("run", matrix, "--launcher", "slurm", "--jobs", "2", "--out", str(bench.out))
    wait_for(lambda: len(slurm.jobs()) == 3 and len(slurm("squeue", "-h", "-t", "R", "-o", "%i").split()) == 2, 60)
    [second] = slurm("squeue", "-h", "-t", "PD", "-o", "%i").split()
    slurm("scontrol", "hold", second)  # else Slurm may start it as soon as the first one ends
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 0, output
    first = next(job for job in bench.job_ids() if job != second)
    assert f"all is measured: job {second} is not needed" in output
    assert slurm.jobs() == [busy]
    assert [owner_of(bench.out, result.attempt.cell.slug) for result in bench.store().results()] == [first, first]


@pytest.mark.jobs
def test_no_attempt_begins_that_the_time_limit_would_cut(bench: SlurmBench, slurm: Cluster) -> None:
    matrix = bench.matrix(
        matrix={"backend": "ddp", "sleep_s": [round(0.1 + number / 1000, 3) for number in range(10)], "batch": 2},
        measure={"warmup_steps": 1, "steps": 40, "phase_steps": 0},
    )
    process = bench.start("run", matrix, "--launcher", "slurm", "--out", str(bench.out))
    wait_for(lambda: slurm("squeue", "-h", "-t", "R", "-o", "%i").split(), 60)
    [job] = slurm.jobs()
    slurm("scontrol", "update", f"JobId={job}", "EndTime=now+40")
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 0, output
    assert f"the time of job {job} is over: another one goes on" in output
    assert bench.end_of_job(job)["state"] == "GOES_ON"
    assert bench.tried_again() == []
    assert [result.retried for result in bench.store().results()] == [None] * 10
