"""What a run folder keeps beside its results: the plan, and the sources of the last command."""

import os
from pathlib import Path

from examples import forecast

from bench.records.sources import LastCommand
from bench.store.run_folder import Store
from bench.store.spool import write_text


def test_a_later_plan_replaces_that_of_its_cells_and_an_equal_one_writes_nothing(tmp_path: Path) -> None:
    assert Store(tmp_path).forecasts() is None
    Store(tmp_path).keep_forecasts([forecast("ddp"), forecast("fsdp")])
    os.utime(tmp_path / "plan.json", (1, 1))
    Store(tmp_path).keep_forecasts([forecast("ddp")])
    assert (tmp_path / "plan.json").stat().st_mtime == 1
    Store(tmp_path).keep_forecasts([forecast("ddp", allowance_bytes=2)])
    kept = Store(tmp_path).forecasts()
    assert [one.allowance_bytes for one in kept.forecasts] == [2, 0]


def test_a_plan_that_cannot_be_read_is_none_and_a_folder_that_cannot_be_written_keeps_none(tmp_path: Path) -> None:
    write_text(tmp_path / "plan.json", "{")
    assert Store(tmp_path).forecasts() is None
    Store(Path(os.devnull)).keep_forecasts([forecast("ddp")])


def test_a_plan_of_other_sources_is_forgotten(tmp_path: Path) -> None:
    Store(tmp_path).keep_forecasts([forecast("ddp")])
    Store(tmp_path).forget_forecasts()
    assert Store(tmp_path).forecasts() is None
    Store(tmp_path).forget_forecasts()


def test_the_last_command_replaces_those_before_and_a_torn_file_is_noted(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.last_command() is None
    assert not store.unreadable
    command = LastCommand(at="2026-01-01T00:00:00+00:00", workload="pi07", sources={"model/policy.py": "0"})
    later = command.model_copy(update={"at": "2026-01-02T00:00:00+00:00"})
    for each in (command, later):
        store.keep_command(each)
    assert store.last_command() == later
    file = tmp_path / "last_command.json"
    file.write_text(file.read_text()[:40])
    assert store.last_command() is None
    assert list(store.unreadable) == [file]
