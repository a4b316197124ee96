"""Jobs that a real Slurm loses: what is finished stays, and what was interrupted goes once to another job."""

from collections.abc import Callable

import pytest
from cluster import Cluster
from harness import wait_for
from runs import SLOW_S, SlurmBench

pytestmark = pytest.mark.jobs


def scancel(slurm: Cluster, job: str) -> None:
    slurm("scancel", job)


def node_down(slurm: Cluster, job: str) -> None:
    node = slurm("squeue", "-h", "-j", job, "-o", "%N").strip()
    slurm("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")


def time_is_up(slurm: Cluster, job: str) -> None:
    slurm("scontrol", "update", f"JobId={job}", "EndTime=now")


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
    slurm.resume_nodes()
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
