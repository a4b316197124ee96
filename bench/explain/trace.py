"""Reads one rank's trace, as torch.profiler (Kineto) writes it: JSON, plain or gzip.

A trace of 200 MB would take gigabytes as Python objects, so a part of the file is decoded at a time, and of each event
only what the division of a step needs is kept.
"""

import gzip
import json
import math
import re
import sys
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, TextIO, cast

from bench.errors import InputError
from bench.records.dtypes import DTYPES

CHUNK = 1 << 20
"""Characters that are read at a time."""
CATEGORIES = {
    "operator": "cpu_op",
    "runtime": "cuda_runtime",
    "cuda_driver": "cuda_runtime",
    "hip_runtime": "cuda_runtime",
    "memcpy": "gpu_memcpy",
    "memset": "gpu_memset",
}
"""Names of kinds of events in other versions of the profiler, by what they are called here."""
KERNEL, COPY = "kernel", ("gpu_memcpy", "gpu_memset")
KEPT = {"cpu_op", "user_annotation", "cuda_runtime", KERNEL, *COPY}
ITEM_BYTES = {name.lower(): dtype.item_bytes for name, dtype in DTYPES.items()}
ITEM_BYTES |= {"long int": 8, "signed char": 1, "unsigned char": 1}


MALFORMED = (AttributeError, KeyError, OverflowError, TypeError, ValueError)
"""What values of another type raise where an event is read."""


class Event(NamedTuple):
    """Something that took time, in nanoseconds of the rank's clock."""

    name: str
    start: int
    end: int
    kind: str
    thread: str
    """The host's thread, or the device's stream."""
    launched: int | None = None
    """When the host queued it; None for what runs on the host, and where the trace does not say."""
    n_bytes: int | None = None
    """Of a collective: its larger side. None: the trace does not say."""
    group: str = ""
    """Of a collective: the ranks that take part. Empty: the trace does not say."""


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One rank's events, by their start."""

    name: str
    rank: int
    world_size: int | None
    host: list[Event]
    """Operators."""
    marks: list[Event]
    """Named ranges: of the profiler, of bench, of the user."""
    device: list[Event]
    """Kernels, copies and fills; empty on a CPU."""
    collectives: list[tuple[str, int]] = field(default_factory=list)
    """The calls on a CPU with their bytes, in order: what a profiled attempt of bench adds."""


def find(folder: Path) -> list[Path]:
    """The trace files of a folder, without other JSON that lies there; or the file itself.

    Raises:
        InputError: there are none.
    """
    files = [folder] if folder.is_file() else sorted([*folder.glob("*.json"), *folder.glob("*.json.gz")])
    if not files:
        raise InputError(
            "holds no trace",
            where=str(folder),
            allowed="files of torch.profiler's export_chrome_trace, one for each rank: *.json or *.json.gz",
        )
    return [file for file in files if _may_be_trace(file)] or files


def _may_be_trace(file: Path) -> bool:
    """Whether the list of events begins soon, or the file is so broken that it must be told."""
    try:
        with _opened(file) as text:
            return '"traceEvents"' in text.read(CHUNK)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError):
        return True


def _opened(file: Path) -> TextIO:
    if file.suffix == ".gz":
        return cast(TextIO, gzip.open(file, "rt", encoding="utf-8"))
    return file.open(encoding="utf-8")


def read_all(files: list[Path]) -> list[Trace]:
    """The traces by rank. Some ranks may be missing.

    Raises:
        InputError: a file cannot be read, or two are of the same rank.
    """
    traces: dict[int, Trace] = {}
    for number, file in enumerate(files):
        trace = read(file, number)
        if (other := traces.get(trace.rank)) is not None:
            raise InputError(
                f"is of rank {trace.rank}, as {other.name} is", where=str(file), fix="keep the traces of one run only"
            )
        traces[trace.rank] = trace
    return [traces[rank] for rank in sorted(traces)]


def read(file: Path, number: int = 0) -> Trace:
    """One trace.

    Args:
        number: the rank of a trace that does not say which rank it is of.

    Raises:
        InputError: no trace of this profiler, or one that is cut off.
    """
    try:
        with _opened(file) as text:
            taken: list[_Taken] = []
            queued: dict[int, int] = {}
            outside: dict[str, Any] = {}
            for number_of_event, one in enumerate(_decoded(text, outside, file)):
                try:
                    _take(one, taken, queued)
                except MALFORMED as error:
                    raise _malformed(file, f"event {number_of_event}", one) from error
    except EOFError as error:
        raise _cut_off(file) from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InputError("is damaged: gzip cannot read it", where=str(file), fix="export or copy it again") from error
    except RecursionError as error:
        raise InputError("is nested too deeply", where=str(file), fix="export or copy it again") from error
    except UnicodeDecodeError as error:
        raise InputError("is not text", where=str(file), allowed="a trace as JSON, plain or gzip (*.gz)") from error
    named = re.search(r"rank[_-]?(\d+)", file.name)
    try:
        base = int(outside.get("baseTimeNanoseconds") or 0)
        about = outside.get("distributedInfo") or {}
        rank = int(about["rank"] if "rank" in about else named[1] if named else number)
        world_size = int(about["world_size"]) if "world_size" in about else None
        if rank < 0 or rank != float(about.get("rank", rank)) or (world_size is not None and rank >= world_size):
            raise ValueError("no rank of this world")
        sizes = [
            (str(operation), int(n_bytes)) for operation, n_bytes in outside.get("bench", {}).get("collectives", [])
        ]
    except MALFORMED as error:
        raise _malformed(file, "what stands beside the events", {**outside}) from error
    queued = {correlation: at + base for correlation, at in queued.items()}
    taken.sort(key=itemgetter(1))
    kept = [
        Event(name, start + base, end + base, kind, thread, correlation and queued.get(correlation), n_bytes, group)
        for name, start, end, kind, thread, correlation, n_bytes, group in taken
    ]
    if not kept:
        raise InputError("holds no operator and no kernel", where=str(file), fix="profile some steps of training")
    marks = [one for one in kept if one.kind == "user_annotation"]
    return Trace(
        name=file.name,
        rank=rank,
        world_size=world_size,
        host=[one for one in kept if one.kind == "cpu_op"],
        marks=marks,
        device=_with_bytes([one for one in kept if one.kind in (KERNEL, *COPY)], marks),
        collectives=sizes,
    )


_Taken = tuple[str, int, int, str, str, int | None, int | None, str]
"""An event before all launches are known: with its correlation instead; None where it has none."""


@cache
def _kind(category: object) -> str | None:
    """As it is called here; None if such events are not needed."""
    kind = str(category).lower()
    kind = CATEGORIES.get(kind, kind)
    return kind if kind in KEPT else None


def _take(one: dict[str, Any], taken: list[_Taken], queued: dict[int, int]) -> None:
    """Keep what is needed of an event."""
    kind = _kind(one.get("cat"))
    if kind is None or one.get("ph") != "X" or "ts" not in one:
        return
    start, args = round(float(one["ts"]) * 1000), one.get("args") or {}
    correlation = args.get("correlation")
    if kind == "cuda_runtime":
        if correlation is not None:
            queued[correlation] = start
        return
    if (took := float(one.get("dur") or 0)) < 0:  # it never ended, for the profiler
        return
    end = start + round(took * 1000)
    name, thread = sys.intern(one["name"]), sys.intern(str(args.get("stream", one.get("tid"))))
    of_device = correlation if kind in (KERNEL, *COPY) else None
    group = sys.intern(str(args.get("Process Group Ranks", "")))
    taken.append((name, start, end, kind, thread, of_device, _bytes(args, name), group))


def _bytes(args: dict[str, Any], name: str) -> int | None:
    """What a collective moves: the larger of its sides."""
    if "dtype" not in args and not name.startswith("nccl:"):
        return None
    elements = [int(args[side]) for side in ("In msg nelems", "Out msg nelems") if isinstance(args.get(side), int)]
    item = _item_bytes(args.get("dtype"))
    if elements and item:
        return max(elements) * item
    shapes, types = args.get("Input Dims") or [], args.get("Input type") or []
    return sum(_item_bytes(type_) * _elements(shape) for shape, type_ in zip(shapes, types, strict=False)) or None


def _item_bytes(dtype: object) -> int:
    return ITEM_BYTES.get(str(dtype).lower().removeprefix("c10::"), 0)


def _elements(shape: Any) -> int:
    """Of a tensor, or of a list of them."""
    if shape and isinstance(shape[0], list):
        return sum(map(_elements, shape))
    return math.prod(map(int, shape)) if shape else 0


def _with_bytes(device: list[Event], marks: list[Event]) -> list[Event]:
    """Older profilers state the size of a collective only where the host issues it."""
    issued = [one for one in marks if one.n_bytes and one.name.startswith("nccl:")]
    at = 0
    sized = dict[int, int]()
    for index in sorted((i for i, one in enumerate(device) if one.launched), key=lambda i: device[i].launched or 0):
        launched = device[index].launched or 0
        while at < len(issued) and issued[at].end < launched:
            at += 1
        if at < len(issued) and issued[at].start <= launched and "nccl" in device[index].name.lower():
            sized[index] = issued[at].n_bytes or 0
    return [
        one._replace(n_bytes=sized[index]) if one.n_bytes is None and index in sized else one
        for index, one in enumerate(device)
    ]


def _decoded(text: TextIO, outside: dict[str, Any], file: Path) -> Iterator[dict[str, Any]]:
    """The events one by one. What stands beside them goes to ``outside``."""
    buffer = ""
    while (found := re.search(r'"traceEvents"\s*:\s*\[', buffer)) is None:
        more = text.read(CHUNK)
        if not more and not buffer:
            raise InputError("is empty", where=str(file), fix="export or copy it again")
        if not more or len(buffer) > 64 * CHUNK:
            raise (
                InputError("is not a trace of torch.profiler: it has no list of traceEvents", where=str(file))
                if not buffer.lstrip().startswith("{") or '"traceEvents"' not in buffer
                else _cut_off(file)
            )
        buffer += more
    _beside(buffer[: found.start()].rstrip().rstrip(",") + "}", outside, file)
    decode, at = json.JSONDecoder().raw_decode, found.end()
    while True:
        if end := _start_of_last(buffer, at):  # many at once: one at a time takes several times as long
            with suppress(ValueError):  # what looks like an event may stand in another one
                yield from json.loads(f"[{buffer[at:end].strip().strip(',')}]")
                at = end
        while at < len(buffer) and buffer[at] in " \t\r\n,":
            at += 1
        if at < len(buffer) and buffer[at] == "]":
            break
        try:
            event, at = decode(buffer, at)
        except ValueError:
            more = text.read(CHUNK)
            if not more:
                raise _cut_off(file) from None
            buffer, at = buffer[at:] + more, 0
            continue
        yield event
    rest = buffer[at + 1 :] + text.read()
    _beside("{" + rest.lstrip().removeprefix(","), outside, file)


def _start_of_last(buffer: str, at: int) -> int | None:
    """Where the last event of the buffer begins, as Kineto writes events; None if nothing is before it."""
    key = buffer.rfind('"ph"', at)
    start = buffer.rfind("{", at, max(at, key))
    before = buffer[at:start].rstrip() if start > at and not buffer[start + 1 : key].strip() else ""
    return start if before.endswith(",") and before != "," else None


def _beside(text: str, outside: dict[str, Any], file: Path) -> None:
    try:
        outside.update(json.loads(text))
    except ValueError as error:
        raise _cut_off(file) from error


def _malformed(file: Path, what: str, found: object) -> InputError:
    return InputError(
        f"{what} is not as torch.profiler writes it: {str(found)[:120]}",
        where=str(file),
        fix="export it again with export_chrome_trace",
    )


def _cut_off(file: Path) -> InputError:
    return InputError("is cut off: it ends within its events", where=str(file), fix="export or copy it again")
