"""A stored result that somebody edited: whatever number stands in it, it is left out, or the report works."""

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from examples import CUDA_MACHINE, accounted, ok, rank, rendered, result, rss, vram, world

from bench.records.cell import Walk
from bench.records.conditions import Conditions, GpuConditions
from bench.records.outcome import Oom, Reported
from bench.records.rank_outcome import Footprint, Walked
from bench.records.verdict import Answer, Goal, Probe, Verdict
from bench.report.render import frame
from bench.report.summary import summarize
from bench.report.tables.export import records
from bench.report.tables.show import show
from bench.store.run_folder import Store
from bench.store.spool import write
from bench.sweep.probe import hints

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
MEASURED = world(*(rank(n, memory=vram(1, 2)).model_copy(update={"metrics": {"mse": (1.0,) * 5}}) for n in (0, 1)))
REPORTED = Reported(
    source="a table",
    step_time_s_per_rank=(0.1,),
    samples_per_s_global=40.0,
    phase_times_s={"forward": 0.05, "total": 0.1},
    figures={
        "peak_allocated_bytes_rank_max": 2**30,
        "peak_reserved_bytes_rank_max": 2**31,
        "capacity_bytes_rank_min": 2**32,
        "capacity_share_rank_max": 0.5,
    },
)
STORED = {
    "measured on GPUs": result(MEASURED, axes={"num_cams": 1}, machine=CUDA_MACHINE),
    "measured on a CPU": accounted(result(ok(), axes={"share": 0.5}), launch=2.0, measure=3.0),
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
            frame.text(records(summarize(results)), "csv")
            show([one for one in results if one.attempt.cell.id == stored.attempt.cell.id], {})
        except Exception as error:
            broken.append(f"{key} = {value}: {error!r}")
    assert broken == []
    assert left_out > 20


EDITS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a rank is missing": (lambda o: {"ranks": o["ranks"][:1]}, "rank 0 is of a world of 2, here are 1"),
    "a rank too many": (lambda o: {"ranks": [*o["ranks"], o["ranks"][1] | {"rank": 2}]}, "of a world of 2, here are 3"),
    "two of a number": (lambda o: {"ranks": [o["ranks"][0]] * 2}, "ranks are numbered 0, 0"),
    "a number of no rank": (lambda o: {"ranks": [o["ranks"][0], o["ranks"][1] | {"rank": 7}]}, "are numbered 0, 7"),
    "another order": (lambda o: {"ranks": o["ranks"][::-1]}, "ranks are numbered 1, 0"),
    "another world": (lambda o: regimes(o, world_size=3), "rank 0 is of a world of 3, here are 2"),
    "a smaller world": (
        lambda o: {"ranks": regimes(o, world_size=1)["ranks"][:1]},
        "it has 1 rank, its cell 2",
    ),
    "more sharded than there are": (lambda o: regimes(o, sharded_parameters=1001), "1001 of 1000 parameters"),
    "a step less": (lambda o: last_rank(o, "step_times_s"), "losses has values for 5 steps, but times for 4"),
    "a step and its loss less": (
        lambda o: last_rank(o, "step_times_s", "losses", metrics={}),
        "rank 1 has 1 warm-up, 2 measured and 2 phase steps, its attempt 1 warm-up, 3 measured and 2 phase steps",
    ),
    "a loss less": (lambda o: last_rank(o, "losses"), "losses has values for 4 steps, but times for 5"),
    "no losses": (lambda o: last_rank(o, losses=[]), "losses has values for 0 steps, but times for 5"),
    "no loss of the warm-up": (lambda o: last_rank(o, warmup_losses=[]), "rank 1 has 0 warm-up"),
    "a metric of fewer steps": (
        lambda o: last_rank(o, metrics={"mse": [1.0]}),
        "mse has values for 1 steps, but times for 5",
    ),
    "no phases": (lambda o: last_rank(o, phase_times_s={}), "losses has values for 5 steps, but times for 3"),
    "phases of unlike lengths": (
        lambda o: last_rank(o, phase_times_s=o["ranks"][1]["phase_times_s"] | {"bwd": [0.1]}),
        "phases have different numbers of steps",
    ),
}


def last_rank(outcome: Any, *shorter: str, **changes: Any) -> Any:
    first, last = outcome["ranks"]
    return {"ranks": [first, last | {name: last[name][:-1] for name in shorter} | changes]}


def regimes(outcome: Any, **changes: Any) -> Any:
    return {"ranks": [rank | {"regime": rank["regime"] | changes} for rank in outcome["ranks"]]}


@pytest.mark.parametrize("name", EDITS)
def test_a_result_that_is_not_of_its_own_cell_counts_as_not_measured(tmp_path: Path, name: str) -> None:
    stored, (edit, why) = STORED["measured on GPUs"], EDITS[name]
    store = Store(tmp_path)
    with store.open(stored.machine, [stored.attempt.cell], ""):
        store.finish(stored)
    file = store.folder(stored.attempt) / "result.json"
    document = json.loads(file.read_text())
    file.write_text(json.dumps(document | {"outcome": document["outcome"] | edit(document["outcome"])}))
    assert store.results() == []
    assert why in store.unreadable[file]


def test_a_short_attempt_has_a_short_attempt_s_steps(tmp_path: Path) -> None:
    full = STORED["measured on a CPU"]
    attempt = full.attempt.model_copy(update={"short": True})
    store = Store(tmp_path)
    with store.open(full.machine, [attempt.cell], ""):
        for totals_s, found in (((), 1), (None, 0)):
            outcome = world(rank(0, totals_s=totals_s), rank(1, totals_s=totals_s))
            store.finish(full.model_copy(update={"attempt": attempt, "outcome": outcome}))
            assert len(store.results()) == found


@pytest.mark.parametrize("name", ["probe.json", "walk/walk0.json"])
def test_nor_does_a_number_of_a_search(tmp_path: Path, name: str) -> None:
    best = Answer(batch=4, samples_per_s=40.0, held=0.5, confirmed=True)
    verdict = Verdict(
        max_batch_per_rank=6,
        certificate="next_fails",
        fits=6,
        fails=7,
        best=best,
        safe=best,
        points=2,
        thrashing=(5,),
        why="",
    )
    records = [result(batch=batch) for batch in (2, 4)]
    cell = records[0].attempt.cell
    marks = tuple(Footprint(batch_per_rank=n, memory=rss(n), step_time_s=0.1, samples=n) for n in (1, 2, 1))
    store = Store(tmp_path)
    with store.open(records[0].machine, [cell], ""):
        for record in records:
            store.finish(record)
        store.finish_probe(Probe(cell=cell, axes={}, goal=Goal(), found=verdict, needs_bytes=2**30))
    folder = store.folder(Walk(cell=cell, batches_per_rank=()))
    folder.mkdir()
    for number in (0, 1):
        write(folder / f"walk{number}.json", Walked(rank=number, footprints=marks))
    file = folder.parent / name
    written, broken = json.loads(file.read_text()), []
    for key, value in leaves(written):
        for alike in folder.parent.glob("walk/walk*.json") if name.startswith("walk") else [file]:
            alike.write_text(edited(written, key, value))
        try:
            rendered(store.results(), store.probes())
            show(records, {}, store.probe(cell), store.walked(cell))
            list(hints(store.walked(cell)))
        except Exception as error:
            broken.append(f"{key} = {value}: {error!r}")
    assert broken == []
