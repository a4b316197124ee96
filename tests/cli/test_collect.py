"""`bench.load`: the table of csv and parquet, in memory."""

import io
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from commands import bench as command

import bench
from bench.errors import InputError

TINY = Path(__file__).parents[2] / "reports" / "cpu-tiny"


def test_it_has_the_columns_and_values_of_csv_and_parquet(tmp_path: Path) -> None:
    rows = bench.load(TINY)
    csv = pd.read_csv(io.StringIO(command("report", str(TINY), "--format", "csv").stdout))
    assert command("report", str(TINY), "--output", str(tmp_path / "rows.parquet")).exit_code == 0
    parquet = pd.read_parquet(tmp_path / "rows.parquet")
    assert list(rows) == list(csv) == list(parquet)
    for name in ("batch", "samples_per_s_global", "peak_rss_bytes_rank_max", "reason"):
        assert list(rows[name].dropna()) == pytest.approx(list(csv[name].dropna()))
        assert list(rows[name].dropna()) == list(parquet[name].dropna())


def test_whole_numbers_stay_whole_beside_unknown_ones() -> None:
    peaks = bench.load(TINY)["peak_allocated_bytes_rank_max"]
    assert peaks.isna().any()
    assert str(peaks.dtype) == "Int64"


def test_two_runs_of_a_cell_are_told_apart(tmp_path: Path) -> None:
    shutil.copytree(TINY, tmp_path / "again")
    rows = bench.load(TINY, tmp_path / "again")
    assert set(rows["run"]) == {"cpu-tiny", "again"}
    assert len(rows) == 2 * len(bench.load(TINY))


def test_a_folder_without_a_run_is_refused_and_a_torn_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no run"):
        bench.load(tmp_path)
    shutil.copytree(TINY, tmp_path / "torn")
    torn = next((tmp_path / "torn").glob("attempts/*/b8/result.json"))
    torn.write_text("{")
    with pytest.warns(UserWarning, match="is left out"):
        assert len(bench.load(tmp_path / "torn")) == len(bench.load(TINY)) - 1


def test_importing_bench_imports_next_to_nothing() -> None:
    code = "import bench, sys; assert not {'pandas', 'pydantic', 'torch', 'typer'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
