"""How long a rank works itself in each phase of a step, and how long it is blocked by collectives.

Ranks start a step together, and a rank that comes late makes the others wait in the next collective. Their phase times
are then long, too, although the work is not. What differs between ranks is the time outside the collectives.

A collective blocks the host in ``Work.wait`` where Python issues it (FSDP, DeepSpeed, accelerate). DDP issues its own
from C++ while backward goes on, and waits for all of them after the last one. So a phase's blocked time is its waits,
and the time after its last collective where no wait for that one was seen. Collectives are those of torch's flight
recorder, whose gloo entries do not say when they end.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch.distributed as dist
from torch._C import _distributed_c10d

Span = tuple[float, float]
"""Start and end, in seconds of ``time.perf_counter``."""


Call = Callable[..., Any]


@contextmanager
def blocked() -> Iterator[list[Span]]:
    """Collects when this process waits for collectives, while it is open."""
    spans: list[Span] = []
    with waits_through(lambda wait: _timed(wait, spans)):
        yield spans


@contextmanager
def waits_through(wrapped: Callable[[Call], Call]) -> Iterator[None]:
    """Wraps the calls in which this process waits for collectives, while it is open."""
    targets: list[tuple[Any, str]] = [(_distributed_c10d.Work, "wait")]
    if hasattr(dist, "_broadcast_coalesced"):  # DDP's, for buffers; it waits in C++
        targets.append((dist, "_broadcast_coalesced"))
    with ExitStack() as restored:
        for owner, name in targets:
            original = getattr(owner, name)
            restored.callback(setattr, owner, name, original)
            setattr(owner, name, wrapped(original))
        yield


def _timed(call: Call, spans: list[Span]) -> Call:
    def timed(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return call(*args, **kwargs)
        finally:
            spans.append((start, time.perf_counter()))

    return timed


def own_work(phases: Iterable[tuple[str, Span]], waits: Sequence[Span], issued: Sequence[float]) -> dict[str, float]:
    """Seconds of each phase of one step in which this rank was not blocked.

    Args:
        phases: in the order of the step; one may come again in each micro-batch.
        waits: the time spent in waits; they do not overlap.
        issued: when each collective of the step was issued.
    """
    unseen = len(issued) > len(waits)
    work_s: dict[str, float] = {}
    for name, (start, end) in phases:
        spans = [span for span in waits if start <= span[0] < end]
        last = max((at for at in issued if start <= at < end), default=None)
        if unseen and last is not None and all(until < last for _, until in spans):
            spans.append((last, end))
        own_s = max(0.0, end - start - sum(until - since for since, until in spans))
        work_s[name] = work_s.get(name, 0.0) + own_s
    return work_s


def issued_s(collectives: Sequence[Mapping[str, Any]] | None, start_s: float, start_ns: int) -> list[float]:
    """When each collective of a step was issued, by ``time.perf_counter``; empty where that is unknown.

    Args:
        collectives: as recorded; None if some are lost.
        start_s: when the step began.
        start_ns: the same moment in nanoseconds since the epoch.
    """
    return [start_s + (int(entry["time_created_ns"]) - start_ns) / 1e9 for entry in collectives or ()]


def without_blocking(phases: Sequence[tuple[str, Span]], issued: Sequence[float]) -> list[tuple[str, Span]]:
    """The phases in which waiting for other ranks is known: on NCCL, a collective blocks the device alone."""
    if dist.get_backend() == "gloo":  # not "cuda:nccl,cpu:gloo", which offloading takes
        return list(phases)
    blocking = {name for name, (a, b) in phases if any(a <= at < b for at in issued)}
    return [(name, span) for name, span in phases if name not in blocking]
