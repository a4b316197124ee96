"""Flat records for other programs, in every format."""

import io
import json

import pandas as pd
import pytest
from examples import ok, rank, result, world
from pydantic import JsonValue

from bench.records.cell import Measure
from bench.records.outcome import Failed, Hang, Oom
from bench.report.render import frame
from bench.report.summary import summarize
from bench.report.tables.export import records, tracked


def test_rows_for_other_programs_have_units_and_nulls() -> None:
    results = [
        result(ok((0.1, 0.1, 0.1, 0.1), (0.2, 0.2, 0.2, 0.2))),
        result(Oom(rank=1, phase="bwd", reason="x"), batch=4),
    ]
    summary = summarize(results)
    from_csv = pd.read_csv(io.StringIO(frame.text(records(summary), "csv")))
    from_json = pd.read_json(io.StringIO(frame.text(records(summary), "json")))
    from_parquet = pd.read_parquet(io.BytesIO(frame.parquet(records(summary))))
    for found in (from_csv, from_json, from_parquet):
        assert list(found["outcome"]) == ["ok", "oom"]
        assert found["samples_per_s_global"][0] == pytest.approx(2 * 2 / 0.2)
        assert pd.isna(found["samples_per_s_global"][1])
        assert found["straggler_spread"][0] == pytest.approx(1.0)
        assert found["reason"][1] == "rank 1 in bwd: x"


def test_rows_for_other_programs_have_their_fault_and_retry_and_one_line_each() -> None:
    failed = result(Failed(fault="missing_package", rank=0, phase="start", reason="no\n\x1b[31mmodule"))
    again = result(Failed(fault="rendezvous", rank=0, phase="setup", reason="x"), batch=4)
    again = again.model_copy(update={"retried": "a port\nwas taken"})
    hang = result(Hang(reason="rank 0 waits"), batch=8)
    summary = summarize([failed, again, hang, result(batch=16)])
    for found in (
        pd.read_csv(io.StringIO(frame.text(records(summary), "csv"))),
        pd.read_json(io.StringIO(frame.text(records(summary), "json"))),
        pd.read_parquet(io.BytesIO(frame.parquet(records(summary)))),
    ):
        assert found["fault"].fillna("").to_list() == ["missing_package", "rendezvous", "", ""]
        assert found["retried"].fillna("").to_list() == ["", "a port was taken", "", ""]
        assert found["outcome"].to_list() == ["failed", "failed", "hang", "ok"]
        assert found["reason"][0] == "missing package: rank 0 in start: no \\x1b[31mmodule"


def test_values_of_several_types_and_large_numbers_go_into_every_format() -> None:
    values: list[JsonValue] = [1, "a|b", [1, 2], {"k": [True]}, None, False, 2**70, 1.5]
    summary = summarize([result(axes={"x": value}) for value in values])
    from_parquet = pd.read_parquet(io.BytesIO(frame.parquet(records(summary))))["x"]
    assert from_parquet.fillna("null").map(json.loads).to_list()[:2] == [1, "a|b"]
    assert from_parquet[6] == str(2**70)
    assert '{""k"": [true]}' in frame.text(records(summary), "csv")
    assert [row["x"] for row in json.loads(frame.text(records(summary), "json"))][:3] == [1, "a|b", "[1, 2]"]


def test_a_setting_with_the_name_of_a_figure_keeps_its_value() -> None:
    [record] = records(summarize([result(axes={"device": "mine", "width": 8})]))
    assert (record["setting_device"], record["device"], record["width"]) == ("mine", "cpu", 8)


def test_a_record_says_how_often_a_step_accumulates() -> None:
    found = records(summarize([result(batch=batch, train={"global_batch": 32}) for batch in (4, 16)]))
    assert [(record["batch"], record["accumulate"], record["batch_global"]) for record in found] == [
        (4, 4, 32),
        (16, 1, 32),
    ]
    [record] = records(summarize([result(axes={"accumulate": "mine"})]))
    assert record["accumulate"] == "mine"


def test_step_times_of_a_tracker_stand_beside_the_losses_of_their_steps() -> None:
    """Warm-up may go on by time, beyond the steps that were asked for."""
    warm = rank(0, (0.1, 0.2, 0.3)).model_copy(update={"warmup_losses": (9.0, 8.0, 7.0, 6.0, 5.0)})
    asked = Measure(warmup_steps=1, warmup_s=10.0, steps=3, phase_steps=warm.n_phase_steps)
    (run,) = tracked(summarize([result(world(warm), measure=asked)]))
    assert [step.get("step_time_s") for step in run.steps][:8] == [None] * 5 + [0.1, 0.2, 0.3]
