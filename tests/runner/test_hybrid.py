"""A hang in a part of a mesh, on four real ranks of gloo: it is named, and collectives of every group are progress."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.runner.device import COLLECTIVE_TIMEOUT

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Any:
    environment = {
        "TORCH_FR_BUFFER_SIZE": "2000",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(HERE.parents[1]),
    }
    done = subprocess.run(
        [sys.executable, str(HERE / "hybrid.py"), str(tmp_path_factory.mktemp("hybrid"))],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_every_group_of_a_mesh_waits_for_bench(seen: Any) -> None:
    for of_rank in seen["waits"]:
        assert len(of_rank) == 3  # the world, a shard group and a replica group
        assert set(of_rank.values()) == {COLLECTIVE_TIMEOUT.total_seconds()}


def test_the_hang_names_the_collective_of_the_group(seen: Any) -> None:
    """Ranks 0 and 1 have left their own shard group and wait for the replicas of their shards."""
    assert seen["kind"] == "hang"
    reason = seen["reason"]
    assert reason.startswith("no progress for 60 s")
    assert re.search(r"rank 2 waits at collective 6 of group \w+, all_reduce 9 of Float in train", reason), reason
    assert re.search(r"rank 3 is in train \(\S*hybrid\.py:\d+\), after collective 5 of group \w+", reason), reason
    assert re.search(r"rank 0 waits at collective 1 of group \w+, all_reduce 11 of Float", reason), reason


def test_collectives_of_every_group_are_progress(seen: Any) -> None:
    counts = {int(rank): count for rank, count in seen["counts"].items()}
    assert counts == {0: 7, 1: 7, 2: 6, 3: 5}
