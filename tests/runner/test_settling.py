"""Warm-up by seconds, on two real ranks of which one began it before the other."""

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def test_ranks_end_the_warm_up_at_one_step_once_the_last_has_warmed_up(tmp_path: Path) -> None:
    """By its own clock, the rank that began earlier would end earlier."""
    done = subprocess.run(
        [sys.executable, str(HERE / "settling.py"), str(tmp_path)],
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parents[1])},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    one, other = json.loads(done.stdout.splitlines()[-1])
    assert one["steps"] == other["steps"] > 1
    assert min(one["spent"], other["spent"]) >= 1
