"""The collectives that this process has issued, from torch's flight recorder, for gloo and NCCL."""

import contextlib
import math
import time
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch.distributed as dist

from bench.observe import flight
from bench.observe.flight import call_of, collectives_since
from bench.observe.pulse import frames
from bench.records.call_site import site
from bench.records.dtypes import DTYPES
from bench.records.hang import Collective
from bench.records.rank_outcome import Traffic

OPERATIONS = (
    "reduce_scatter", "all_reduce", "allreduce", "all_gather", "allgather", "all_to_all", "alltoall",
    "broadcast", "barrier", "reduce", "gather", "scatter",
)  # fmt: skip
"""Names of operations, each before those that its own name contains."""
RETIRED_WITHIN_S = 2.0
"""torch's watchdog looks ten times a second."""


class Kind(NamedTuple):
    """Collectives that `traffic` counts together."""

    library: str
    operation: str
    dtype: str
    group_size: int


def collectives() -> tuple[Collective, ...]:
    """The collectives of all groups that the recorder still holds (``TORCH_FR_BUFFER_SIZE``), oldest first."""
    return tuple(Collective(**one) for one in flight.collectives(None, site))


def enable_timing() -> bool:
    """Have NCCL record from now on how long collectives take on the device, as TORCH_NCCL_ENABLE_TIMING does from the
    beginning: one more event for each. torch warns of time on the host, and of a watchdog that hangs more easily.

    Returns:
        Whether some group does.
    """
    enabled = False
    if dist.is_initialized() and "nccl" in dist.get_backend():
        for group in dist.distributed_c10d._world.pg_map:
            with contextlib.suppress(AttributeError, RuntimeError):  # an older torch, or the group's gloo
                group._enable_collectives_timing()  # type: ignore[attr-defined]
                enabled = True
    return enabled


def times_s(spans_ns: Sequence[tuple[int, int]]) -> tuple[float, ...] | None:
    """How long the collectives that were issued in each span took on the device, waiting for other ranks included.

    Durations are there once the watchdog has retired a collective: this waits `RETIRED_WITHIN_S` at most.

    Args:
        spans_ns: start and end, in nanoseconds since the epoch.

    Returns:
        Seconds; None where a duration is unknown.
    """
    until_s = time.monotonic() + RETIRED_WITHIN_S
    while (found := collectives_since(min(start for start, _ in spans_ns))) is not None:
        each = [
            _duration_s([entry for entry in found if start <= int(entry["time_created_ns"]) <= end])
            for start, end in spans_ns
        ]
        known = tuple(duration_s for duration_s in each if duration_s is not None)
        if len(known) == len(each):
            return known
        if time.monotonic() > until_s:
            break
        time.sleep(0.05)
    return None


def _duration_s(entries: Sequence[Mapping[str, Any]]) -> float | None:
    calls: dict[tuple[str, int], float | None] = {}
    for entry in entries:
        duration_ms, before_ms = entry.get("duration_ms"), calls.get(call_of(entry))
        calls[call_of(entry)] = before_ms if duration_ms is None else (before_ms or 0.0) + float(duration_ms)
    known = [duration_ms for duration_ms in calls.values() if duration_ms is not None]
    return sum(known) / 1e3 if calls and len(known) == len(calls) else None


def traffic(entries: Sequence[Mapping[str, Any]] | None) -> tuple[Traffic, ...] | None:
    """What ``entries`` communicate, in all, by operation, dtype and size of the group; None where that is unknown."""
    if entries is None:
        return None
    calls, payload_bytes = Counter[Kind](), Counter[Kind]()
    sizes = _group_sizes()
    for entry in entries:
        dtypes = [*entry["input_dtypes"], *entry["output_dtypes"]]
        group = str(entry["process_group"][0])
        operation = _operation(entry)
        if operation == "barrier" or not dtypes:
            continue
        if operation is None or group not in sizes or not DTYPES.keys() >= set(dtypes):
            return None
        library = str(entry["profiling_name"]).partition(":")[0]
        kind = Kind(library, operation, str(dtypes[0]), sizes[group])
        calls[kind] += 1
        payload_bytes[kind] += max(_bytes(entry, "input"), _bytes(entry, "output"))
    return tuple(
        Traffic(**kind._asdict(), calls=calls[kind], payload_bytes=payload_bytes[kind]) for kind in sorted(calls)
    )


def sizes(entries: Sequence[Mapping[str, Any]]) -> list[tuple[str, int]]:
    """The operation of each entry and its payload in bytes; without entries whose dtype is unknown."""
    return [
        (str(entry["profiling_name"]), max(_bytes(entry, "input"), _bytes(entry, "output")))
        for entry in entries
        if DTYPES.keys() >= {*entry["input_dtypes"], *entry["output_dtypes"]}
    ]


def _operation(entry: Mapping[str, Any]) -> str | None:
    """The kind of operation: `nccl:_all_gather_base` is an all_gather, as `gloo:all_gather` is."""
    name = str(entry["profiling_name"])
    if name.endswith("barrier"):  # NCCL's is an all-reduce of one value, all_reduce_barrier
        return "barrier"
    found = next((operation for operation in OPERATIONS if operation in name), None)
    return found and found.replace("allreduce", "all_reduce").replace("allgather", "all_gather").replace(
        "alltoall", "all_to_all"
    )


def _bytes(entry: Mapping[str, Any], side: str) -> int:
    sizes, dtypes = entry[f"{side}_sizes"], entry[f"{side}_dtypes"]
    return sum(math.prod(size) * DTYPES[dtype].item_bytes for size, dtype in zip(sizes, dtypes, strict=True))


def _group_sizes() -> dict[str, int]:
    """Ranks of each process group, by its name."""
    names: Mapping[dist.ProcessGroup, str] = dist.distributed_c10d._world.pg_names
    return {name: group.size() for group, name in names.items()}


def site_of(error: BaseException) -> str:
    """Where the workload was when ``error`` was raised."""
    return site(list(frames(traceback.walk_tb(error.__traceback__)))[::-1])
