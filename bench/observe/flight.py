"""torch's flight recorder: the collectives that this process has issued, over gloo and NCCL."""

import math
import pickle
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ..records.call_site import Frame
from ..records.dtypes import DTYPES


def issued() -> int:
    """How many collectives this rank has issued in all of its process groups. Cheap."""
    if not dist.is_initialized():
        return 0
    groups: list[Any] = list(dist.distributed_c10d._world.pg_map)  # another thread may add one meanwhile
    return sum(int(group._get_sequence_number_for_group()) for group in groups)


def collectives(newest: int | None, site: Callable[[Sequence[Frame]], str]) -> list[dict[str, Any]]:
    """The fields of `bench.records.hang.Collective`, of all groups that the recorder still holds, oldest first.

    Args:
        newest: only the newest of them, so many; None for all.
        site: the place in the code, of the frames that issued one, innermost first.
    """
    recorded = sorted(entries(), key=lambda entry: int(entry["record_id"]))
    done = {call_of(entry) for entry in recorded if entry["state"] == "completed" or entry["retired"]}
    return [
        _collective(entry, site, finished=call_of(entry) in done)
        for entry in (recorded if newest is None else recorded[-newest:])
    ]


def entries(*, stacks: bool = True) -> list[dict[str, Any]]:
    c10d: Any = torch._C._distributed_c10d
    if not dist.is_initialized():
        return []
    dump = getattr(c10d, "_dump_nccl_trace" if "nccl" in dist.get_backend() else "_dump_fr_trace", None)
    if dump is None:  # an older torch records gloo's collectives nowhere
        return []
    entries: list[dict[str, Any]] = pickle.loads(dump(includeStackTraces=stacks)).get("entries", [])  # noqa: S301  its own data
    return [entry for entry in entries if not entry.get("is_p2p")]


def collectives_since(start_ns: int) -> list[dict[str, Any]] | None:
    """The recorder's entries for the collectives of all groups that were issued since then, oldest first.

    Args:
        start_ns: nanoseconds since the epoch.

    Returns:
        None if the recorder has lost some. The entries have no stack traces.
    """
    found = sorted(entries(stacks=False), key=lambda entry: int(entry["record_id"]))
    if found and int(found[0]["record_id"]) > 0 and int(found[0]["time_created_ns"]) >= start_ns:
        return None
    return [entry for entry in found if int(entry["time_created_ns"]) >= start_ns]


def newest_id() -> int:
    """The recorder's number of the newest collective; -1 before the first."""
    return max((int(entry["record_id"]) for entry in entries(stacks=False)), default=-1)


def reductions(since: int) -> Counter[str]:
    """Scalars by dtype of the reductions after the collective with this number, as far as they are held."""
    reduced = Counter[str]()
    for entry in entries(stacks=False):
        if int(entry["record_id"]) > since and "reduce" in entry["profiling_name"].lower():
            for dtype, shape in zip(entry["input_dtypes"], entry["input_sizes"], strict=False):
                reduced[DTYPES[dtype].name if dtype in DTYPES else dtype] += math.prod(map(int, shape))
    return reduced


def call_of(entry: Mapping[str, Any]) -> tuple[str, int]:
    """What one call issued. NCCL may coalesce some collectives: they have one number, and only the entry after them,
    ``nccl:coalesced``, says when they start and end."""
    return str(entry["process_group"][0]), int(entry["collective_seq_id"])


def _collective(entry: Mapping[str, Any], site: Callable[[Sequence[Frame]], str], *, finished: bool) -> dict[str, Any]:
    return {
        "group": str(entry["process_group"][0]),
        "number": int(entry["collective_seq_id"]),
        "operation": str(entry["profiling_name"]).partition(":")[2] or str(entry["profiling_name"]),
        "shapes": tuple(tuple(map(int, shape)) for shape in entry["input_sizes"]),
        "dtypes": tuple(map(str, entry["input_dtypes"])),
        "finished": finished,
        "site": site([Frame(frame["name"], frame["filename"], frame["line"]) for frame in entry["frames"]]),
    }
