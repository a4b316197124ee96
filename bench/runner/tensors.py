"""The peak of torch's tensors on a CPU, as `max_memory_allocated` gives it on a GPU; for `measure.count_tensors`.

torch's CPU allocator counts what it hands out when a flag of c10 is set (`ProfiledCPUMemoryReporter` in
c10/core/CPUAllocator.cpp), in every thread, those of gloo too. Only torch's memory profiler shows the count. It takes
memory of its own, so it watches two steps of its own, after everything that is measured.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity, profile

from bench.records.peak import Move

STEP = "bench:step"
COLLECTIVES = ("c10d::", "gloo:", "FSDP::post_backward_reduce")
"""Ranges in which tensors are made for a collective alone."""


@contextmanager
def counting(wanted: bool) -> Iterator[None]:
    """While torch's CPU allocator counts, or does not: samples in memory, for example, are no part of a step. What it
    hands out while it does not count is not in the count."""
    flag = _flag()
    if flag is None:
        yield
        return
    before, flag.value = flag.value, wanted
    try:
        yield
    finally:
        flag.value = before


def peak_bytes(step: Callable[[], object]) -> int | None:
    """The most bytes of tensors during another ``step``, the second of two; None if this torch does not count them.

    The allocator must have counted from set-up to the end of the warm-up. A step leaves as many bytes as it found, so
    the steps in between need no count. But of what outlives a step, such as the next batch and FSDP1's gradients, the
    allocator neither saw the earlier one freed nor the present one made. The first step frees the present one: the
    count then is too high by what this step adds to it.
    """
    moved = moves(step, step)
    return moved and max(accumulate((move.size for move in moved.moves), initial=moved.before_bytes))


class Moved(NamedTuple):
    """The memory of tensors in a step."""

    before_bytes: int
    """Of all tensors before the first move."""
    moves: list[Move]


def moves(first: Callable[[], object], step: Callable[[], object]) -> Moved | None:
    """What ``step`` takes and gives back after ``first``, a step that is alike; None if this torch does not count."""
    if _flag() is None:
        return None
    with counting(True):
        earlier, later = _counts(first), _counts(step)
    if not earlier or not later:
        return None
    before, after = earlier[0][0] - earlier[0][1].size, earlier[-1][0]
    total, move = later[0]
    return Moved(total - move.size - (after - before), [move for _, move in later])


def _counts(step: Callable[[], object]) -> list[tuple[int, Move]]:
    """The total after each allocation of a step, in order, and the allocation."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled, record_function(STEP):
        step()
    results: Any = profiled.profiler
    waiting = [(event, False) for event in results.kineto_results.experimental_event_tree()]
    found, own = list[tuple[Any, int, bool, int]](), 0
    while waiting:
        event, communicates = waiting.pop()
        inside = communicates or event.name.startswith(COLLECTIVES)
        waiting += [(child, inside) for child in event.children]
        if event.name == STEP:
            own = event.start_tid
        if event.tag.name == "Allocation" and event.extra_fields.device.type == "cpu":
            found.append((event.extra_fields, event.start_time_ns, communicates, event.start_tid))
    return [
        (it.total_allocated, Move(at_ns, it.ptr, it.alloc_size, own=thread == own and not communicates))
        for it, at_ns, communicates, thread in sorted(found, key=lambda one: one[1])
    ]


def _flag() -> ctypes.c_bool | None:
    """None where torch's library is built in another way."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
        return ctypes.c_bool.in_dll(library, "FLAGS_caffe2_report_cpu_memory_usage")
    except (OSError, ValueError):
        return None
