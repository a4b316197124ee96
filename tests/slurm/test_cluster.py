"""The cluster of the other tests is a real one: its daemons run a task on each node, and end with everything below."""

import os
import subprocess
from pathlib import Path

import psutil
import pytest
from cluster import Cluster, missing
from harness import wait_for


def test_a_job_runs_on_both_nodes_and_nothing_outlives_the_cluster(tmp_path: Path) -> None:
    if reason := missing():
        pytest.skip(reason)
    slurm = Cluster(tmp_path / "cluster")
    try:
        names = slurm("srun", "--nodes=2", "--ntasks=2", "sh", "-c", "echo $SLURMD_NODENAME")
        assert sorted(names.split()) == ["n1", "n2"]
        command = ["srun", "--nodes=2", "--ntasks=2", "sleep", "600"]
        waiting = subprocess.Popen(command, env={**os.environ, **slurm.environment}, stderr=subprocess.DEVNULL)
        wait_for(lambda: sum(process.name() == "sleep" for process in slurm.processes()) == 2)
        assert len(slurm.jobs()) == 1
    finally:
        slurm.stop()
    waiting.wait(30)
    assert not slurm.processes()
    assert not [one for one in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(one.info["cmdline"] or [])]
