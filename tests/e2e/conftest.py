import fcntl
from pathlib import Path

import policy
import pytest
from harness import bench

__all__ = ["bench"]


@pytest.fixture(scope="session")
def policy_run(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """The folder of `policy.measure`, to be read only. The first worker of pytest-xdist that asks makes it."""
    own = tmp_path_factory.getbasetemp()
    folder = (own if worker_id == "master" else own.parent) / "policy"
    with folder.with_suffix(".lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if not (folder / "run").exists():
            folder.mkdir(exist_ok=True)
            policy.measure(folder)
    return folder / "run"
