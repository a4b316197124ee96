"""Marks of time and peaks of memory on the device that a script trains on."""

import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

_ADDED = Counter[str]()


@contextmanager
def added(*fields: str) -> Iterator[None]:
    """What these fields of /proc/self/status grow by meanwhile is bench's own: peaks leave it out."""
    before = {field: status_bytes(field) or 0 for field in fields}
    try:
        yield
    finally:
        _ADDED.update({field: (status_bytes(field) or 0) - size for field, size in before.items()})


def _peak_rss() -> int | None:
    peak = status_bytes("VmHWM")
    return None if peak is None else peak - _ADDED["RssAnon"] - _ADDED["RssFile"]


class Cpu:
    """A process on a CPU."""

    def mark(self) -> Any:
        return time.perf_counter()

    def between_s(self, first: Any, last: Any) -> float:
        return float(last - first)

    def synchronize(self) -> None: ...

    def reset_peaks(self) -> None:
        reset_peak_rss()

    def peaks(self) -> dict[str, int | None]:
        """Of `Memory`, since ``reset_peaks``. The kernel records no peak of the data segment, which a memory limit
        counts, imports too: what the allocator has returned since the peak was in it, too."""
        data, peak, now = status_bytes("VmData"), status_bytes("VmHWM"), status_bytes("VmRSS")
        known = data is not None and peak is not None and now is not None
        return {
            "peak_allocated_bytes": (data or 0) - _ADDED["VmData"] + (peak or 0) - (now or 0) if known else None,
            "peak_reserved_bytes": None,
            "peak_rss_bytes": _peak_rss(),
        }

    def capacity_bytes(self, on_cpu: int) -> int:
        return on_cpu


class Cuda:
    """The accelerator of the process, by torch's module for its kind. Nothing waits for it before `synchronize`."""

    kind = "cuda"
    """As torch names it: ``torch.<kind>`` is its module."""

    def __init__(self, index: int | None = None) -> None:
        """``index``: of the device that trains; None: torch's current one. A script need not make it that."""
        self._index = index

    @property
    def _torch(self) -> Any:
        return getattr(torch, self.kind)

    def mark(self) -> Any:
        event = self._torch.Event(enable_timing=True)
        if self._index is None:
            event.record()
        else:
            event.record(self._torch.current_stream(self._index))
        return event

    def between_s(self, first: Any, last: Any) -> float:
        return float(first.elapsed_time(last)) / 1e3  # from milliseconds

    def synchronize(self) -> None:
        self._torch.synchronize(self._index)

    def reset_peaks(self) -> None:
        self._torch.reset_peak_memory_stats(self._index)
        self._torch.reset_accumulated_memory_stats(self._index)  # the retries
        reset_peak_rss()

    def peaks(self) -> dict[str, int | None]:
        """Of `Memory`, since ``reset_peaks``."""
        return {
            "peak_allocated_bytes": self._torch.max_memory_allocated(self._index),
            "peak_reserved_bytes": self._torch.max_memory_reserved(self._index),
            "peak_rss_bytes": _peak_rss(),
            "alloc_retries": self._torch.memory_stats(self._index).get("num_alloc_retries", 0),
        }

    def capacity_bytes(self, on_cpu: int) -> int:  # noqa: ARG002
        """The rest is not the script's to use."""
        free, _ = self._torch.mem_get_info(self._index)
        return int(free + self._torch.memory_reserved(self._index))


def device_of(optimizers: Sequence[Any]) -> Cpu | Cuda:
    """Where the script trains: these have made a step."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return Cpu()
    groups = (group for optimizer in optimizers for group in getattr(optimizer, "param_groups", ()))
    stepped = (one for group in groups for one in group["params"])
    return Cuda(next((one.device.index for one in stepped if one.device.type == Cuda.kind), None))


def ranks() -> tuple[int, int]:
    """This process's rank and how many there are."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def reset_peak_rss() -> None:
    """Reset VmHWM to the current VmRSS: proc(5), clear_refs."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def status_bytes(field: str) -> int | None:
    """A field of /proc/self/status in bytes; None if there is no such file or field."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), None)
