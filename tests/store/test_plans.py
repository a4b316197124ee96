"""The plan beside a run's results."""

import os
from pathlib import Path

from examples import cell, regime

from bench.records.forecast import Forecast, Line
from bench.store import plans
from bench.store.spool import write_text


def forecast(backend: str, weights: int = 1) -> Forecast:
    return Forecast(
        cell=cell(backend),
        device="cpu",
        lines=(Line(when="forward", parts={"weights": weights}, fixed_bytes=0.0, sample_bytes=1.0),),
        input_bytes=0,
        allowance_bytes=0,
        apart=0.0,
        assumed=0,
        regime=regime(backend),
        unit_parameters={},
        flops={},
        kept_bytes=(0.0, 0.0),
        moved_bytes=(0.0, 0.0),
        operators=0,
    )


def test_a_later_plan_replaces_that_of_its_cells_and_an_equal_one_writes_nothing(tmp_path: Path) -> None:
    assert plans.read(tmp_path) is None
    plans.keep(tmp_path, [forecast("ddp"), forecast("fsdp")])
    os.utime(tmp_path / "plan.json", (1, 1))
    plans.keep(tmp_path, [forecast("ddp")])
    assert (tmp_path / "plan.json").stat().st_mtime == 1
    plans.keep(tmp_path, [forecast("ddp", weights=2)])
    kept = plans.read(tmp_path)
    assert kept is not None
    assert [one.lines[0].parts["weights"] for one in kept.forecasts] == [2, 1]


def test_a_plan_that_cannot_be_read_is_none_and_a_folder_that_cannot_be_written_keeps_none(tmp_path: Path) -> None:
    write_text(tmp_path / "plan.json", "{")
    assert plans.read(tmp_path) is None
    plans.keep(Path(os.devnull), [forecast("ddp")])


def test_a_plan_of_other_sources_is_forgotten(tmp_path: Path) -> None:
    plans.keep(tmp_path, [forecast("ddp")])
    plans.forget(tmp_path)
    assert plans.read(tmp_path) is None
    plans.forget(tmp_path)
