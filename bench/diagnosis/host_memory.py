"""Whose memory ran out: on a GPU, the host's says nothing about the batch. Pure."""

from typing import TypeVar

from bench.records.outcome import Failed, Oom

T = TypeVar("T")

HOST = (
    *("cpu_allocator", "onednn", "shared_memory", "cpp", "python", "system", "kernel", "abort", "loader"),
    "pinned_host",
)
"""Values of `Oom.source` for memory of the host."""


def told_apart(outcome: T | Oom, *, apart: bool) -> T | Oom | Failed:
    """The outcome, but a failure where the host of a GPU ran out of memory: a smaller batch may not help.

    Args:
        apart: ranks train in another memory than the host's: on GPUs that have their own.
    """
    if not apart or not isinstance(outcome, Oom) or outcome.source not in HOST:
        return outcome
    reason = f"the memory of the host ran out, not that of the GPU: {outcome.reason}"
    return Failed(fault="host_memory", rank=outcome.rank, phase=outcome.phase, reason=reason)
