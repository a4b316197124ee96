"""Names of other tools that the user maps to fields, and what is said of the rest."""

import json
from pathlib import Path

import pytest
from pydantic import JsonValue

from bench.errors import InputError
from bench.imported import read_all

AT = "2026-01-01T00:00:00+00:00"
SETTINGS = ["source=a wiki", "workload=theirs", "backend=ddp", "num_processes=2"]


def test_a_key_of_another_name_is_read_and_each_other_one_is_named(tmp_path: Path) -> None:
    file = tmp_path / "theirs.json"
    timing = {"step": 0.5, "eval": 1.0, "inner": {"deep": 3}}
    file.write_text(json.dumps({"timing": timing, "bs": 4, "mem": {"peak": 10.0}, "note": "x"}))
    maps = ["step_time_s=timing.step", "batch=bs", "peak_allocated_gb=mem.peak"]
    read = read_all([file], SETTINGS, AT, maps)
    [result] = read.results
    assert result.attempt.batch_per_rank == 4
    assert result.outcome.model_dump()["step_time_s_per_rank"] == (0.5,)
    assert result.outcome.model_dump()["figures"]["peak_allocated_bytes_rank_max"] == 10_000_000_000
    assert result.notes == {"timing.eval": 1.0, "timing.inner.deep": 3, "note": "x"}


def test_a_column_of_another_name_is_read(tmp_path: Path) -> None:
    file = tmp_path / "theirs.csv"
    file.write_text("ms per step,bs,frozen\n500,4,true\n")
    [result] = read_all(
        [file], SETTINGS, AT, ["step_time_ms=ms per step", "batch=bs", "workload.frozen=frozen"]
    ).results
    assert result.outcome.model_dump()["step_time_s_per_rank"] == (0.5,)
    assert result.attempt.cell.options == {"frozen": True}


@pytest.mark.parametrize(
    ("mapping", "problem"),
    [
        ("step_time_s", "'step_time_s' has no field or no name"),
        ("step_tim_s=timing", "unknown field 'step_tim_s'"),
        ("step_time_s=timing.total", "no file has a value called 'timing.total'"),
    ],
)
def test_a_mapping_that_reads_nothing_is_refused(tmp_path: Path, mapping: str, problem: str) -> None:
    file = tmp_path / "theirs.json"
    file.write_text(json.dumps({"timing": {"step": 0.5}, "samples_per_s": 3.0, "batch": 4}))
    with pytest.raises(InputError, match=problem) as error:
        read_all([file], SETTINGS, AT, [mapping])
    assert error.value.where == f"--map {mapping}"


def test_a_mapped_backend_has_its_name_here_as_one_of_a_known_column_has(tmp_path: Path) -> None:
    file = tmp_path / "theirs.csv"
    file.write_text("Method,ms per step,bs\nFSDP,500,4\nZeRO-2,400,4\nOurs v2,300,4\n")
    maps = ["backend=Method", "step_time_ms=ms per step", "batch=bs"]
    read = read_all([file], [text for text in SETTINGS if not text.startswith("backend")], AT, maps)
    assert [result.attempt.cell.backend for result in read.results] == ["fsdp", "zero2", "Ours-v2"]


@pytest.mark.parametrize(
    ("column", "value"),
    [("samples_per_s", "12k"), ("samples_per_s", "300 samples/min"), ("tokens_per_s", "1.5k"), ("steps_per_s", "50%")],
)
def test_a_unit_in_a_column_whose_name_is_the_unit_is_refused(tmp_path: Path, column: str, value: str) -> None:
    """12k was read as 12."""
    file = tmp_path / "theirs.csv"
    file.write_text(f"batch,seq_len,{column}\n8,100,{value}\n")
    with pytest.raises(InputError, match=f"'{value}' cannot be used") as error:
        read_all([file], SETTINGS, AT, [])
    assert "without a unit" in str(error.value)


def test_a_column_is_said_to_be_read_or_to_be_kept(tmp_path: Path) -> None:
    """One line said both of samples_per_second, and named max_memory_gb by a field that shows no peak."""
    file = tmp_path / "theirs.csv"
    file.write_text("bs,samples_per_second,max_memory_gb,mfu,step time\n4,16,40.1,0.4,~500 ms\n")
    told = read_all([file], SETTINGS, AT)
    assert told.told == (
        "read: bs as batch, samples_per_second as samples_per_s, step time as step_time_s; --map FIELD=NAME reads one"
        " otherwise",
        "max_memory_gb may be allocated or reserved memory, so at most its share of the capacity is shown:"
        " --map peak_allocated_gb=max_memory_gb or --map peak_reserved_gb=max_memory_gb says which",
    )
    assert told.notes == ("mfu", "max_memory_gb")
    assert told.results[0].notes == {"max_memory_gb": "40.1", "mfu": "0.4", "step time": "~500 ms"}
    [mapped] = read_all([file], SETTINGS, AT, ["peak_allocated_gb=max_memory_gb"]).results
    assert mapped.outcome.model_dump()["figures"] == {"peak_allocated_bytes_rank_max": 40_100_000_000}


@pytest.mark.parametrize(
    ("column", "value", "how"),
    [
        ("Memory (GiB)", "2", "--map 'peak_allocated_gib=Memory (GiB)' or --map 'peak_reserved_gib=Memory (GiB)' says"),
        ("Max VRAM", "2 GB", "--map 'peak_allocated_gb=Max VRAM' or "),
        ("mem", 2**31, "--map peak_allocated_bytes=mem or "),
        ("max_memory_mb", "2000", "put the word after memory in its name"),
        ("memory", "2", None),
    ],
)
def test_memory_of_unsaid_kind_is_told_what_reads_it(
    tmp_path: Path, column: str, value: JsonValue, how: str | None
) -> None:
    file = tmp_path / "theirs.json"
    file.write_text(json.dumps({"batch": 4, "step_time_s": 1, column: value}))
    read = read_all([file], SETTINGS, AT)
    assert read.notes == (column,)
    assert len(read.told) == (how is not None)
    assert all(how in sentence for sentence in read.told if how)
