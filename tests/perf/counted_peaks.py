"""Counts the live tensors of a rank with torch's memory profiler: what `max_memory_allocated` is on a GPU.

A workload module: a rank that imports it counts from set-up on, and adds a line to the file that BENCH_COUNTED names.
Copies that a collective makes of its own do not count: gloo's threads free them where the profiler does not look.
"""

import json
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.model.workload import Pi07


class Counted(Pi07):
    """The bundled policy."""


def count() -> None:
    """Make every attempt of this process write its peak."""
    from torch.profiler import ProfilerActivity, profile

    from bench.records.phases import Stage

    attempt: Any = import_module("bench.runner.attempt")
    set_up, window = attempt.set_up, attempt.throughput_window
    running: dict[str, Any] = {}

    def counted_set_up(cell: Any, *rest: Any, **more: Any) -> Any:
        running["cell"] = cell
        running["profiler"] = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        running["profiler"].__enter__()
        return set_up(cell, *rest, **more)

    def counted_window(job: Any, batches: Any, steps: int, shim: Any, beat: Any, stage: Any) -> Any:
        if stage != Stage.MEASURE:
            return window(job, batches, steps, shim, beat, stage)
        from torch.profiler import record_function

        with record_function("MEASURED"):
            done = window(job, batches, steps, shim, beat, stage)
        running["profiler"].__exit__(None, None, None)
        tree = running["profiler"].profiler.kineto_results.experimental_event_tree()
        line = {"cell": running["cell"].model_dump(mode="json"), "peak_bytes": peak_bytes(tree)}
        with Path(os.environ["BENCH_COUNTED"]).open("a") as file:
            file.write(json.dumps(line) + "\n")
        return done

    attempt.set_up, attempt.throughput_window = counted_set_up, counted_window


def peak_bytes(tree: Any) -> int:
    """The most bytes that live at once while the steps are measured."""
    live: dict[int, int] = {}
    total = most = 0
    measured = False
    for _, change, address, path in sorted(_events(tree, ()), key=lambda event: event[0]):
        if address is None:
            measured = change > 0
        elif change > 0 and not any(name.startswith("c10d::") for name in path[-6:]):
            total += change - live.get(address, 0)
            live[address] = change
        elif change < 0:
            total -= live.pop(address, 0)
        most = max(most, total) if measured else most
    return most


def _events(tree: Any, path: tuple[str, ...]) -> Iterator[tuple[int, int, int | None, tuple[str, ...]]]:
    for event in tree:
        if event.tag.name == "Allocation":
            yield event.start_time_ns, event.extra_fields.alloc_size, event.extra_fields.ptr, path
            continue
        if event.name == "MEASURED":
            yield event.start_time_ns, 1, None, path
            yield event.end_time_ns, -1, None, path
        yield from _events(event.children, (*path, event.name))


if "torch" in sys.modules and "BENCH_COUNTED" in os.environ:
    count()
