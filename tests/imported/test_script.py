"""The figures that a script writes: read, or refused with the reason."""

import json
from pathlib import Path
from typing import Any

import pytest
from examples import cell

from bench.imported.script import Read, read_result
from bench.records.cell import Attempt
from bench.records.machine import Hardware
from bench.records.script import Script

CPU = Hardware(device="cpu", devices=0, cores=4, memory_bytes=2**34)
GPU = Hardware(device="cuda", devices=2, cores=4, memory_bytes=2**36)
TOLD = ("{num_processes}",)


def read(
    folder: Path, content: object, *words: str, hardware: Hardware = CPU, accumulation: int = 1, **result: str
) -> Read | str:
    script = Script(command=("train", "{batch}", "{out}", *words), result=result)
    file = folder / "script.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    of = cell("ddp", script=script, options={"num_cams": 2, "width": 64}, train={"accumulate": accumulation})
    return read_result(file, Attempt(cell=of, batch_per_rank=4), hardware)


def figures(*given: Any, **more: Any) -> Read:
    found = read(*given, **more)
    assert isinstance(found, Read), found
    return found


def test_names_of_bench_and_of_the_script(tmp_path: Path) -> None:
    own = figures(tmp_path, {"step_time_ms": 500, "peak_reserved_gib": 1, "loss": 2.0, "more": {"a": 1}}, *TOLD)
    assert own.figures.step_time_s_per_rank == (0.5,)
    assert own.figures.figures["peak_reserved_bytes_rank_max"] == 2**30
    assert own.figures.figures["capacity_bytes_rank_min"] == 2**33  # a process's share of the host
    assert own.not_read == ("loss", "more.a")
    assert figures(tmp_path, {"step_time_ms": 500, "width": 64}, *TOLD).not_read == ()
    named = figures(tmp_path, {"t": {"s": 0.5}, "world": 2}, step_time_s="t.s", num_processes="world", hardware=GPU)
    assert named.figures.step_time_s_per_rank == (0.5,)
    assert named.figures.figures["capacity_bytes_rank_min"] == 2**36
    assert named.not_read == ()


@pytest.mark.parametrize(
    ("content", "words", "result", "problem"),
    [
        ("", TOLD, {}, "is not JSON"),
        ('{"step_time_s": 0.', TOLD, {}, "script.json:1: is not JSON"),
        ("[1]", TOLD, {}, "an object of figures"),
        ('{"step_time_s": NaN}', TOLD, {}, "NaN is not a number"),
        ('{"step_time_s": 1, "step_time_s": 2}', TOLD, {}, "given twice"),
        ({"loss": 1}, TOLD, {}, "neither a step time nor a throughput"),
        ({"step_time_s": "fast"}, TOLD, {}, "a number above 0"),
        ({"step_time_s": 0}, TOLD, {}, "a number above 0"),
        ({"t": 1}, TOLD, {"step_time_s": "tt"}, "has no key 'tt'"),
        ({"step_time_s": 1, "samples_per_s": 4}, TOLD, {}, "4.00 samples/s is impossible"),  # those of one rank
        ({"step_time_s": 1, "batch": 8}, TOLD, {}, "with batch 8, not 4"),
        ({"step_time_s": 1, "width": 32}, TOLD, {}, "with width 32, not 64"),
        ({"step_time_s": 1, "world_size": 1}, (), {}, "with num_processes 1, not 2"),
        ({"step_time_s": 1, "num_cams": 4}, TOLD, {}, "with num_cams 4, not 2"),
        ({"step_time_s": 1}, (), {}, "ambiguous: nothing says how many processes"),
        ({"step_time_s": 1, "peak_allocated_gib": 100}, TOLD, {}, "more than the capacity"),
    ],
)  # fmt: skip
def test_a_result_that_cannot_be_used(
    tmp_path: Path, content: object, words: tuple[str, ...], result: dict[str, str], problem: str
) -> None:
    why = read(tmp_path, content, *words, **result)
    assert isinstance(why, str)
    assert problem in why
    assert "\n" not in why


def test_the_names_of_a_trainer(tmp_path: Path) -> None:
    trainer = {"train_loss": 1.5, "train_runtime": 60.0, "train_samples_per_second": 8.0, "train_steps_per_second": 1.0}
    found = figures(tmp_path, trainer)
    assert found.figures.samples_per_s_global == 8.0
    assert found.not_read == ("train_loss", "train_runtime")
    why = read(
        tmp_path, {**trainer, "train_samples_per_second": 64.0}
    )  # it accumulates, and the matrix does not say so
    assert isinstance(why, str)
    assert "64 samples a step are impossible: batch 4 on 2 ranks gives 8" in why
    assert "accumulate" in why
    rounded = {**trainer, "train_samples_per_second": 0.035, "train_steps_per_second": 0.004}
    assert figures(tmp_path, rounded).figures.samples_per_s_global == 0.035


def test_the_accumulation_of_a_script_counts_in_its_samples(tmp_path: Path) -> None:
    """A step time of one optimizer step, in which two ranks take 4 samples 8 times."""
    assert figures(tmp_path, {"step_time_s": 2, "samples_per_s": 32}, *TOLD, accumulation=8)
    why = read(tmp_path, {"step_time_s": 2, "samples_per_s": 4}, *TOLD, accumulation=8)
    assert isinstance(why, str)
    assert "batch 4 on 2 ranks, 8 micro-batches each" in why
    assert "gives 32" in why


def test_null_means_unknown(tmp_path: Path) -> None:
    for result in ({}, {"step_time_s": "step_time_s", "peak_allocated_gib": "peak_allocated_gib"}):
        found = figures(tmp_path, {"step_time_s": 1, "peak_allocated_gib": None}, *TOLD, **result)
        assert "peak_allocated_bytes_rank_max" not in found.figures.figures


def test_a_throughput_of_all_processes_needs_no_number_of_them(tmp_path: Path) -> None:
    assert figures(tmp_path, {"samples_per_s": 3.5}).figures.samples_per_s_global == 3.5
