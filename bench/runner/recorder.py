"""The collectives that this process has issued, from torch's flight recorder, for gloo and NCCL."""

import math
import pickle
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from bench.diagnosis.call_site import Frame, site
from bench.records.hang import Collective
from bench.records.rank_outcome import Traffic

OPERATIONS = (
    "reduce_scatter", "all_reduce", "allreduce", "all_gather", "allgather", "all_to_all", "alltoall",
    "broadcast", "barrier", "reduce", "gather", "scatter",
)  # fmt: skip
"""Names of operations, each before those that its own name contains."""
ITEM_BYTES = {
    "Double": 8, "Long": 8, "Float": 4, "Int": 4, "BFloat16": 2, "Half": 2, "Short": 2, "Char": 1, "Byte": 1, "Bool": 1,
}  # fmt: skip
"""Bytes of one element, by the recorder's name of a dtype."""


class Kind(NamedTuple):
    """Collectives that `traffic` counts together."""

    library: str
    operation: str
    dtype: str
    group_size: int


def collectives(newest: int | None = None) -> tuple[Collective, ...]:
    """The collectives of all groups that the recorder still holds (``TORCH_FR_BUFFER_SIZE``), oldest first.

    Args:
        newest: only the newest of them, so many; all by default.
    """
    recorded = sorted(_entries(), key=lambda entry: int(entry["record_id"]))
    return tuple(_collective(entry) for entry in (recorded if newest is None else recorded[-newest:]))


def last_number() -> int:
    """Sequence number of the newest collective of the default group; 0 before the first. Cheap."""
    if not dist.is_initialized():
        return 0
    group: Any = dist.group.WORLD
    return int(group._get_sequence_number_for_group())


def collectives_since(start_ns: int) -> list[dict[str, Any]] | None:
    """The recorder's entries for the collectives of all groups that were issued since then, oldest first.

    Args:
        start_ns: nanoseconds since the epoch.

    Returns:
        None if the recorder has lost some. The entries have no stack traces.
    """
    entries = sorted(_entries(stacks=False), key=lambda entry: int(entry["record_id"]))
    if entries and int(entries[0]["record_id"]) > 0 and int(entries[0]["time_created_ns"]) >= start_ns:
        return None
    return [entry for entry in entries if int(entry["time_created_ns"]) >= start_ns]


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
        if operation is None or group not in sizes or not ITEM_BYTES.keys() >= set(dtypes):
            return None
        library = str(entry["profiling_name"]).partition(":")[0]
        kind = Kind(library, operation, str(dtypes[0]), sizes[group])
        calls[kind] += 1
        payload_bytes[kind] += max(_bytes(entry, "input"), _bytes(entry, "output"))
    return tuple(
        Traffic(**kind._asdict(), calls=calls[kind], payload_bytes=payload_bytes[kind]) for kind in sorted(calls)
    )


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
    return sum(math.prod(size) * ITEM_BYTES[dtype] for size, dtype in zip(sizes, dtypes, strict=True))


def _group_sizes() -> dict[str, int]:
    """Ranks of each process group, by its name."""
    names: Mapping[dist.ProcessGroup, str] = dist.distributed_c10d._world.pg_names
    return {name: group.size() for group, name in names.items()}


def newest_id() -> int:
    """The recorder's number of the newest collective; -1 before the first."""
    return max((int(entry["record_id"]) for entry in _entries(stacks=False)), default=-1)


DTYPES = {"Float": "float32", "BFloat16": "bfloat16", "Half": "float16", "Double": "float64"}


def reductions(since: int) -> Iterator[tuple[str, int]]:
    """Dtype and number of scalars of each reduction after the collective with this number, as far as they are held."""
    for entry in _entries(stacks=False):
        if int(entry["record_id"]) > since and "reduce" in entry["profiling_name"].lower():
            for dtype, shape in zip(entry["input_dtypes"], entry["input_sizes"], strict=False):
                yield DTYPES.get(dtype, dtype), math.prod(map(int, shape))


def _entries(*, stacks: bool = True) -> list[dict[str, Any]]:
    c10d: Any = torch._C._distributed_c10d
    if not dist.is_initialized():
        return []
    dump = getattr(c10d, "_dump_nccl_trace" if "nccl" in dist.get_backend() else "_dump_fr_trace", None)
    if dump is None:  # an older torch records gloo's collectives nowhere
        return []
    entries: list[dict[str, Any]] = pickle.loads(dump(includeStackTraces=stacks)).get("entries", [])  # noqa: S301  its own data
    return [entry for entry in entries if not entry.get("is_p2p")]


def _collective(entry: Mapping[str, Any]) -> Collective:
    return Collective(
        group=str(entry["process_group"][0]),
        number=int(entry["collective_seq_id"]),
        operation=str(entry["profiling_name"]).partition(":")[2] or str(entry["profiling_name"]),
        shapes=tuple(tuple(map(int, shape)) for shape in entry["input_sizes"]),
        dtypes=tuple(map(str, entry["input_dtypes"])),
        finished=entry["state"] == "completed" or bool(entry["retired"]),
        site=site([Frame(frame["name"], frame["filename"], frame["line"]) for frame in entry["frames"]]),
    )


def site_of(error: BaseException) -> str:
    """Where the workload was when ``error`` was raised."""
    return site(list(frames(traceback.walk_tb(error.__traceback__)))[::-1])


def frames(walked: Iterable[tuple[FrameType, int]]) -> Iterator[Frame]:
    """In the flight recorder's form."""
    for frame, line in walked:
        yield Frame(frame.f_code.co_name, frame.f_code.co_filename, line)
