"""Tables that bench itself wrote go through an import and come out the same, in both formats."""

from pathlib import Path

import pytest
from commands import bench as command
from examples import result

import bench
from bench.imported import read_all
from bench.report.advice import advise
from bench.report.render import frame
from bench.report.summary import summarize
from bench.report.tables.export import records

TINY = Path(__file__).parents[2] / "reports" / "cpu-tiny"
KEPT = (
    *("backend", "num_cams", "workload", "preset", "num_processes", "mixed_precision", "memory_limit_bytes"),
    *("batch", "batch_global", "device", "outcome", "samples_per_s_global", "step_time_s_rank_max"),
    *("peak_allocated_bytes_rank_max", "capacity_share_rank_max", "forward_s_mean", "bwd_s_mean", "total_s_mean"),
)


@pytest.mark.parametrize("ending", ["csv", "json"])
def test_the_figures_of_a_run_come_back(ending: str, tmp_path: Path) -> None:
    assert command("report", str(TINY), "--output", str(tmp_path / f"tiny.{ending}")).exit_code == 0
    done = command("import", str(tmp_path / f"tiny.{ending}"), "--out", str(tmp_path / "run"))
    assert done.exit_code == 0, done.output
    assert "not read: cell, " in done.output
    assert all(name in done.output for name in ("samples_per_s_global_low", "loss_last", "straggler_spread"))
    measured, imported = bench.load(TINY), bench.load(tmp_path / "run")
    measured["outcome"] = measured["outcome"].replace("ok", "reported")
    for name in KEPT:
        assert list(imported[name].dropna()) == pytest.approx(list(measured[name].dropna())), name
    assert set(imported["source"].dropna()) == {"bench report"}


@pytest.mark.parametrize("ending", ["csv", "json"])
def test_a_global_batch_comes_back_as_the_setting_that_it_was(ending: str, tmp_path: Path) -> None:
    whole = [
        result(backend=name, batch=batch, train={"global_batch": 32}) for name in ("ddp", "fsdp") for batch in (4, 16)
    ]
    several = result(batch=8, train={"accumulate": 3})
    measured = summarize([*whole, several])
    file = tmp_path / f"run.{ending}"
    file.write_text(frame.text(records(measured), ending))
    imported = summarize(read_all([file], [], "2030-01-01T00:00:00+00:00").results)
    trains = {(cell.cell.train.global_batch, cell.cell.train.accumulate) for cell in imported.cells}
    assert trains == {(32, 1), (None, 3)}
    assert len(advise(imported)) == len(advise(measured)) == 2
    for name in ("batch", "batch_global", "accumulate", "global_batch"):
        assert [row.get(name) for row in records(imported)] == [row.get(name) for row in records(measured)], name


def test_names_of_profilers_are_read_and_settings_of_a_workload_are_its_own(tmp_path: Path) -> None:
    table = tmp_path / "old.csv"
    table.write_text(
        "cell,backend,width,deep,workload,num_processes,batch_per_rank,batch_global,outcome,step_time_s_rank_max,mean\n"
        "0a1b2c,ddp,8,True,mine:Mine,2,4,8,ok,0.5,1\n"
        "0a1b2c,ddp,16,False,mine:Mine,2,4,8,oom,,\n"
    )
    done = command("import", str(table), "device=cpu", "--out", str(tmp_path / "run"))
    assert done.exit_code == 0, done.output
    assert "not read: cell, batch_global, mean" in done.output
    rows = bench.load(tmp_path / "run")
    assert list(rows["width"]) == [8, 16]
    assert list(rows["deep"]) == [True, False]
    assert list(rows["batch"]) == [4, 4]
    assert list(rows["outcome"]) == ["reported", "oom"]
    assert set(rows["device"]) == {"cpu"}


def test_names_of_csv_and_claims_are_fields_of_an_import(tmp_path: Path) -> None:
    table = tmp_path / "mine.csv"
    table.write_text(
        "# source: my notes\n# workload: w\n# num_processes: 2\n"
        "backend,batch,step_time_s_rank_max,peak_allocated_bytes_rank_max,bwd_s_mean\nddp,4,0.5,1e9,0.2\n"
    )
    assert command("import", str(table), "--out", str(tmp_path / "run")).exit_code == 0
    (row,) = bench.load(tmp_path / "run").to_dict("records")
    assert (row["step_time_s_rank_max"], row["peak_allocated_bytes_rank_max"], row["bwd_s_mean"]) == (0.5, 1e9, 0.2)
