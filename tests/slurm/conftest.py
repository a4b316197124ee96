from collections.abc import Iterator
from pathlib import Path

import cluster
import pytest
from cluster import Cluster
from runs import SlurmBench


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A running Slurm of two nodes."""
    if reason := cluster.missing():
        pytest.skip(reason)
    running = Cluster(tmp_path_factory.mktemp("slurm") / "cluster")
    yield running
    running.stop()
    assert not running.processes()


@pytest.fixture
def bench(tmp_path: Path, slurm: Cluster) -> Iterator[SlurmBench]:
    """The command line on that cluster; after the test, nothing of it may be left."""
    runner = SlurmBench(tmp_path, slurm)
    yield runner
    slurm.quiet()
    runner.assert_gone(within_s=20)
