"""A search to real out-of-memory errors in a job gives the answer of one on this machine."""

from pathlib import Path

import pytest
from cluster import Cluster
from runs import SlurmBench

from bench.records.verdict import Verdict
from bench.store.run_folder import Store

pytestmark = pytest.mark.jobs

SETTINGS = ("--granularity", "16", "--memory-limit", "265MiB", "--max-batch", "64")
"""16 samples of 2 MiB fit and 32 do not: as in tests/e2e/test_probe.py."""


def verdict(folder: Path) -> Verdict:
    [probe] = Store(folder).probes()
    assert isinstance(probe.found, Verdict)
    return probe.found


@pytest.mark.parametrize("nodes", [1, 2])
def test_the_largest_batch_is_certified_as_on_this_machine(bench: SlurmBench, slurm: Cluster, nodes: int) -> None:
    matrix = bench.matrix(
        workload={"name": "toy:Toy", "held_mib": 2},
        matrix={"backend": "ddp"},
        measure={"warmup_steps": 1, "steps": 3, "phase_steps": 0},
    )
    bench("probe", matrix, *SETTINGS, "--launcher", "slurm", "--nodes", str(nodes), "--out", str(bench.out))
    there = verdict(bench.out)
    assert there.max_batch_per_rank == 16
    assert there.certificate == "next_fails"
    assert any(result.outcome.kind == "oom" for result in bench.store().results())
    assert len(bench.job_ids()) == 1
    if nodes == 1:
        bench("probe", matrix, *SETTINGS, "--out", str(bench.folder / "here"))
        here = verdict(bench.folder / "here")
        assert (here.max_batch_per_rank, here.certificate) == (there.max_batch_per_rank, there.certificate)
