"""How long a rank works itself in each phase of a step, and how long it is blocked by collectives.

Ranks start a step together, and a rank that comes late makes the others wait in the next collective. Their phase times
are then long, too, although the work is not. What differs between ranks is the time outside the collectives.

A collective blocks the host in ``Work.wait`` where Python issues it (FSDP, DeepSpeed, accelerate). DDP issues its own
from C++ while backward goes on, and waits for all of them after the last one. So a phase's blocked time is its waits,
and the time after its last collective where no wait for that one was seen. Collectives are those of torch's flight
recorder, whose gloo entries do not say when they end.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch._C import _distributed_c10d

Span = tuple[float, float]
"""Start and end, in seconds of ``time.perf_counter``."""


@contextmanager
def blocked() -> Iterator[list[Span]]:
    """Collects when this process waits for collectives, while it is open."""
    spans: list[Span] = []
    targets: list[tuple[Any, str]] = [(_distributed_c10d.Work, "wait")]
    if hasattr(dist, "_broadcast_coalesced"):  # DDP's, for buffers; it waits in C++
        targets.append((dist, "_broadcast_coalesced"))
    originals = [getattr(owner, name) for owner, name in targets]
    for (owner, name), original in zip(targets, originals, strict=True):
        setattr(owner, name, _timed(original, spans))
    try:
        yield spans
    finally:
        for (owner, name), original in zip(targets, originals, strict=True):
            setattr(owner, name, original)


def _timed(call: Callable[..., Any], spans: list[Span]) -> Callable[..., Any]:
    def timed(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return call(*args, **kwargs)
        finally:
            spans.append((start, time.perf_counter()))

    return timed


def own_work(phases: Mapping[str, Span], waits: Sequence[Span], issued: Sequence[float]) -> dict[str, float]:
    """Seconds of each phase of one step in which this rank was not blocked.

    Args:
        waits: the time spent in waits; they do not overlap.
        issued: when each collective of the step was issued.
    """
    unseen = len(issued) > len(waits)
    work_s = {}
    for name, (start, end) in phases.items():
        spans = [span for span in waits if start <= span[0] < end]
        last = max((at for at in issued if start <= at < end), default=None)
        if unseen and last is not None and all(until < last for _, until in spans):
            spans.append((last, end))
        work_s[name] = max(0.0, end - start - sum(until - since for since, until in spans))
    return work_s
