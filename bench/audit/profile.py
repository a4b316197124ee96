"""What a profiled attempt leaves: a trace for each rank, how its steps compare with unprofiled ones, and its memory."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from bench.records.base import Frozen, Positive, Rank
from bench.records.peak import AtPeak


class Profiled(Frozen):
    """`audit<N>.json`: one rank's steps, beside its trace."""

    rank: Rank
    profiled_times_s: Annotated[tuple[Positive, ...], Field(min_length=1)]
    unprofiled_times_s: Annotated[tuple[Positive, ...], Field(min_length=1)]
    """Of as many steps just before, in the same process."""
    memory: AtPeak | None = None
    """Of one more step; None where tensors cannot be counted."""


def trace_file(folder: Path, rank: int) -> Path:
    """Where rank ``rank`` leaves its trace; Perfetto and chrome://tracing open it."""
    return folder / f"rank{rank}.trace.json.gz"


def snapshot_file(folder: Path, rank: int) -> Path:
    """Where rank ``rank`` leaves the allocator's snapshot on CUDA; torch's viewer of memory opens it."""
    return folder / f"rank{rank}.memory.pickle"
