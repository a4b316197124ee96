"""From a stack to the workload's place, with what the runner itself puts between the workload and torch."""

from pathlib import Path

import pytest

import bench
from bench.diagnosis.call_site import Frame, site

RUNNER = Path(bench.__file__).parent / "runner"
TORCH = Frame("wait", "/lib/torch/distributed/distributed_c10d.py", 7)
MODEL = Frame("forward", "/home/model/policy.py", 10)
STEP = Frame("step", str(RUNNER / "steps.py"), 50)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("__torch_dispatch__", "computed.py"),
        ("__call__", "forward.py"),
        ("timed", "own_work.py"),
        ("_count", "units.py"),
    ],
)
def test_what_watches_a_call_is_not_its_place(name: str, file: str) -> None:
    assert (RUNNER / file).is_file()
    watcher = Frame(name, str(RUNNER / file), 3)
    assert site([TORCH, watcher, MODEL, STEP]) == "forward (model/policy.py:10)"
    assert site([watcher, TORCH, STEP]) == "wait, called by step (runner/steps.py:50)"
