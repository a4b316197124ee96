"""The collectives that this process has issued, from torch's flight recorder, for gloo and NCCL."""

import math
import pickle
import traceback
from collections.abc import Iterable, Iterator, Mapping
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from bench.diagnosis.call_site import Frame, site
from bench.records.hang import Collective


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
    dump = c10d._dump_nccl_trace if "nccl" in dist.get_backend() else c10d._dump_fr_trace
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
