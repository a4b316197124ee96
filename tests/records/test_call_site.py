"""From a stack to the workload's place, with what the runner itself puts between the workload and torch."""

import re
from pathlib import Path

import pytest
import torch

import bench
from bench.records.call_site import Frame, site

RUNNER = Path(bench.__file__).parent / "runner"
TORCH = Frame("wait", str(Path(torch.__file__).parent / "distributed/distributed_c10d.py"), 7)
MODEL = Frame("forward", "/home/model/policy.py", 10)
STEP = Frame("step", str(RUNNER / "steps.py"), 50)


def _pushes_a_mode(path: Path) -> bool:
    """Whether torch calls this module in the middle of the workload's calls, while a step is measured."""
    return path.stem != "program" and bool(re.search("def __torch_(dispatch|function)__", path.read_text()))


PACKAGE = Path(bench.__file__).parent
MODES = [path for room in ("runner", "observe") for path in (PACKAGE / room).glob("*.py") if _pushes_a_mode(path)]
WRAPPERS = [PACKAGE / file for file in ("runner/forward.py", "observe/own_work.py", "runner/units.py")]


@pytest.mark.parametrize("file", [*MODES, *WRAPPERS], ids=lambda file: file.stem)
def test_what_watches_a_call_is_not_its_place(file: Path) -> None:
    assert file.is_file()
    watcher = Frame("watch", str(file), 3)
    assert site([TORCH, watcher, MODEL, STEP]) == "forward (model/policy.py:10)"
    assert site([watcher, TORCH, STEP]) == "wait, called by step (runner/steps.py:50)"


def test_a_folder_of_the_user_may_have_the_name_of_a_library() -> None:
    mine = Frame("forward", "/home/me/torch/policy.py", 10)
    assert site([TORCH, mine, STEP]) == "forward (torch/policy.py:10)"
