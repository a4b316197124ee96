"""A stored result that somebody edited: whatever number stands in it, it is left out, or the report works."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from examples import CUDA_MACHINE, ok, rank, rendered, result, vram

from bench.hygiene import Conditions, GpuConditions
from bench.outcome import Ok, Oom, Reported
from bench.report import frame
from bench.report.show import show
from bench.report.summary import summarize
from bench.store import Store

NUMBERS: tuple[Any, ...] = (0, -1, float("nan"), float("inf"), 1e308, 2**70)
GPU = GpuConditions(
    busy_share_before=0.5,
    others_before=1,
    others_bytes_before=2**30,
    throttled=("power cap",),
    sm_clock_share_min=0.5,
    temperature_c_max=80,
)
BESIDE = Conditions(
    others_cpu_share_before=0.5,
    others_cpu_share=0.5,
    available_bytes_min=2**30,
    swap_used_bytes_before=1,
    swapped_bytes=2**20,
    disk_free_bytes_min=2**20,
    disk_bytes=2**40,
    gpus=(GPU,),
)
MEASURED = Ok(ranks=tuple(rank(n, memory=vram(1, 2)).model_copy(update={"metrics": {"mse": (1.0,)}}) for n in (0, 1)))
REPORTED = Reported(
    source="a table",
    step_time_s_per_rank=(0.1,),
    samples_per_s_global=40.0,
    phase_times_s={"forward": 0.05, "total": 0.1},
    peak_allocated_bytes=2**30,
    peak_reserved_bytes=2**31,
    capacity_bytes=2**32,
    capacity_share=0.5,
)
STORED = {
    "measured on GPUs": result(MEASURED, axes={"num_cams": 1}, machine=CUDA_MACHINE),
    "measured on a CPU": result(ok(), axes={"share": 0.5}),
    "reported": result(REPORTED),
    "out of memory": result(Oom(rank=0, phase="warmup", reason="no memory", bytes_asked=2**30)),
}


def leaves(value: Any, key: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Each number and each list of a document, with what to put in its place."""
    if isinstance(value, bool):
        return
    if isinstance(value, int | float):
        yield from ((key, number) for number in NUMBERS)
    if isinstance(value, list):
        yield key, []
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for part, item in inner:
        yield from leaves(item, (*key, part))


def edited(document: Any, key: tuple[Any, ...], value: Any) -> str:
    document = copy.deepcopy(document)
    *above, last = key
    inner = document
    for part in above:
        inner = inner[part]
    inner[last] = value
    return json.dumps(document)


@pytest.mark.parametrize("name", STORED)
def test_a_number_that_cannot_be_breaks_no_report(tmp_path: Path, name: str) -> None:
    stored = STORED[name].model_copy(update={"conditions": BESIDE})
    other = result(batch=4, machine=stored.machine)
    store = Store(tmp_path)
    with store.open(stored.machine, [stored.attempt.cell, other.attempt.cell], ""):
        store.finish(stored)
        store.finish(other)
    file = store.folder(stored.attempt) / "result.json"
    left_out, broken = 0, []
    for key, value in leaves(json.loads(file.read_text())):
        file.write_text(edited(stored.model_dump(mode="json"), key, value))
        results = store.results()
        if file in store.unreadable:
            left_out += 1
            continue
        try:
            rendered(results)
            frame.text(summarize(results), "csv")
            show([one for one in results if one.attempt.cell.id == stored.attempt.cell.id], {})
        except Exception as error:
            broken.append(f"{key} = {value}: {error!r}")
    assert broken == []
    assert left_out > 20
