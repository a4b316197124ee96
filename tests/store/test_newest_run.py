"""Which run is the newest."""

import json
import os
import time
from pathlib import Path

import pytest
from examples import MACHINE, result, stored

from bench.errors import InputError
from bench.store.newest_run import newest
from bench.store.run_folder import Store

A, C = result(batch=1), result(backend="fsdp", batch=1)


def test_a_run_is_the_newest_though_the_clock_was_set_back(tmp_path: Path) -> None:
    for name in ("b", "c", "a"):
        stored(tmp_path / name, [A])
        assert newest(tmp_path) == tmp_path / name
        if name == "b":
            os.utime(tmp_path / name / "run.json", (time.time() + 3600,) * 2)


def test_what_measures_nothing_makes_no_run_the_newest(tmp_path: Path) -> None:
    commit = MACHINE.model_copy(update={"git_commit": "a" * 40})
    for name in ("b", "a"):
        stored(tmp_path / name, [A])
    file = tmp_path / "b" / "run.json"
    before, written = file.read_bytes(), file.stat().st_mtime_ns
    with Store(tmp_path / "b").open(commit, [A.attempt.cell], None):
        assert (file.read_bytes(), file.stat().st_mtime_ns) == (before, written)
    with Store(tmp_path / "b").open(commit, [C.attempt.cell], None):
        pass
    assert json.loads(file.read_bytes())["cells"] == [A.attempt.cell.slug, C.attempt.cell.slug]
    assert newest(tmp_path) == tmp_path / "a"
    stored(tmp_path / "b", [A])
    assert newest(tmp_path) == tmp_path / "b"


def test_newest_is_the_run_that_was_opened_last(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        stored(tmp_path / name, [A])
    for age, name in enumerate(("a", "c", "b")):
        os.utime(tmp_path / name / "run.json", (time.time() - age * 60,) * 2)
    (tmp_path / "no run").mkdir()
    assert newest(tmp_path) == tmp_path / "a"


@pytest.mark.parametrize("name", ["empty", "missing"])
def test_there_is_no_newest_run(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no run below this folder"):
        newest(tmp_path / name)
