"""What is checked before a sweep starts its ranks."""

from pathlib import Path

import pytest
from test_sweep import plan

import bench
from bench.errors import InputError
from bench.records.verdict import Goal, Probe, Stopped
from bench.store.run_folder import Store
from bench.sweep.session import _check_not_hidden, _has_other_goals


def test_a_file_of_the_users_that_hides_bench_is_named(tmp_path: Path) -> None:
    _check_not_hidden(tmp_path)
    _check_not_hidden(Path(bench.__file__).parent.parent)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "bench.py").write_text("")
    with pytest.raises(InputError, match=r"mine/bench\.py: hides bench from the processes"):
        _check_not_hidden(tmp_path / "mine")


def test_a_verdict_on_another_question_is_no_answer(tmp_path: Path) -> None:
    searched, store, goal = plan("ddp", "probe"), Store(tmp_path), Goal(max_batch=4)
    assert not _has_other_goals(store, [searched], goal)
    store.finish_probe(Probe(cell=searched.cell, axes={}, goal=goal, found=Stopped(reason="ended")))
    assert not _has_other_goals(store, [searched], goal)
    assert _has_other_goals(store, [searched], Goal(max_batch=8))
    assert not _has_other_goals(store, [plan("ddp", 1)], Goal(max_batch=8))
