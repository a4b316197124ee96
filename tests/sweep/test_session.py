"""What is checked before a sweep starts its ranks."""

from pathlib import Path

import pytest
from examples import cell
from test_sweep import plan

import bench
from bench.backends import preloads
from bench.errors import InputError
from bench.records.cell import Train
from bench.records.plan import CellPlan
from bench.records.verdict import Goal, Probe, Stopped
from bench.store.run_folder import Store
from bench.sweep.session import _check_not_hidden, _has_other_goals, _preloads


def test_a_file_of_the_users_that_hides_bench_is_named(tmp_path: Path) -> None:
    _check_not_hidden(tmp_path)
    _check_not_hidden(Path(bench.__file__).parent.parent)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "bench.py").write_text("")
    with pytest.raises(InputError, match=r"mine/bench\.py: hides the bench package: processes started in"):
        _check_not_hidden(tmp_path / "mine")


def test_a_verdict_on_another_question_is_no_answer(tmp_path: Path) -> None:
    searched, store, goal = plan("ddp", "probe"), Store(tmp_path), Goal(max_batch=4)
    assert not _has_other_goals(store, [searched], goal)
    store.finish_probe(Probe(cell=searched.cell, axes={}, goal=goal, found=Stopped(reason="ended")))
    assert not _has_other_goals(store, [searched], goal)
    assert _has_other_goals(store, [searched], Goal(max_batch=8))
    assert not _has_other_goals(store, [plan("ddp", 1)], Goal(max_batch=8))


def test_rank_servers_import_what_is_measured_and_nothing_for_a_cell_that_is_skipped() -> None:
    ddp, zero = cell("ddp"), cell("zero3")
    skipped = cell("zero3", train=Train(optimizer="none"))
    plans = [CellPlan(cell=one, batches=(2,), axes={}) for one in (ddp, skipped)]
    assert _preloads(plans, "cpu") == {2: preloads(ddp)}
    measured = CellPlan(cell=zero, batches=(2,), axes={})
    assert _preloads([*plans, measured], "cpu") == {2: preloads(ddp) | preloads(zero)}
    assert preloads(zero) > preloads(ddp)
