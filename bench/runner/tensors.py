"""The peak of torch's tensors on a CPU, as `max_memory_allocated` gives it on a GPU; for `measure.count_tensors`.

torch's CPU allocator counts what it hands out when a flag of c10 is set (`ProfiledCPUMemoryReporter` in
c10/core/CPUAllocator.cpp), in every thread, those of gloo too. Only torch's memory profiler shows the count. It takes
memory of its own, so it watches two steps of its own, after everything that is measured.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


@contextmanager
def counting(wanted: bool) -> Iterator[None]:
    """While torch's CPU allocator counts, if ``wanted``. What it hands out at other times is not in the count."""
    flag = _flag() if wanted else None
    if flag is None:
        yield
        return
    flag.value = True
    try:
        yield
    finally:
        flag.value = False


@contextmanager
def uncounted() -> Iterator[None]:
    """While torch's CPU allocator does not count: for samples in memory, which are no part of a step."""
    flag = _flag()
    if flag is None:
        yield
        return
    before, flag.value = flag.value, False
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
    if _flag() is None:
        return None
    with counting(True):
        first, second = _counts(step), _counts(step)
    if not first or not second:
        return None
    (before, size), (after, _) = first[0], first[-1]
    return max(total for total, _ in second) - (after - (before - size))


def _counts(step: Callable[[], object]) -> list[tuple[int, int]]:
    """The total after each allocation of a step, in order, and the size of the allocation, negative where it ends."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step()
    results: Any = profiled.profiler
    waiting, found = list(results.kineto_results.experimental_event_tree()), list[tuple[int, int, int]]()
    while waiting:
        event = waiting.pop()
        waiting += event.children
        if event.tag.name == "Allocation" and event.extra_fields.device.type == "cpu":
            it = event.extra_fields
            found.append((event.start_time_ns, it.total_allocated, it.alloc_size))
    return [(total, size) for _, total, size in sorted(found, key=lambda one: one[0])]


def _flag() -> ctypes.c_bool | None:
    """None where torch's library is built in another way."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
        return ctypes.c_bool.in_dll(library, "FLAGS_caffe2_report_cpu_memory_usage")
    except (OSError, ValueError):
        return None
