"""What an attempt came to, as data. The schema's history stands beside its version."""

import re
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, JsonValue, field_validator

from bench.cell import Attempt, Frozen, Measure, Regime, Train
from bench.machine import Machine

SCHEMA_VERSION: Literal[1] = 1
"""1: first version."""

PHASES = ("dataload_wait", "forward", "bwd", "unscale_clip", "optim_step", "zero_grad_sched", "sync_gather")
"""The phases of a step, in order. `total` is measured beside them."""

BACKWARD_STEP = ("bwd", "unscale_clip", "optim_step", "zero_grad_sched")
"""Their sum is stored too, as `backward_step`: what is left of a step that DeepSpeed's engine does not divide likewise.
It is not printed beside its parts."""


class Memory(Frozen):
    """Peaks of one rank over the throughput window, reset at the warm-up boundary."""

    peak_allocated_bytes: int | None
    """CUDA: live tensors of the caching allocator. CPU: what the attempt has added to the data segment, which is what a
    memory limit counts."""
    peak_reserved_bytes: int | None
    """CUDA caching allocator, blocks held; null on a CPU."""
    peak_rss_bytes: int | None
    """High-water mark of the process's resident memory; null where the kernel cannot reset it."""
    capacity_bytes: int
    """What this rank could have used: the memory limit, or what was free when it started."""
    overhead_bytes: int | None = None
    """CUDA memory beside the caching allocator that counts against capacity: NCCL, cuBLAS; null on a CPU."""
    alloc_retries: int = 0
    """Times that the caching allocator had to give its blocks back and ask anew."""

    @property
    def held_bytes(self) -> int | None:
        """The peak to set against capacity: on CUDA what the allocator had reserved, with what is used beside it."""
        if self.peak_reserved_bytes is None:
            return self.peak_allocated_bytes
        return self.peak_reserved_bytes + (self.overhead_bytes or 0)


class RankOk(Frozen):
    """One rank's raw samples."""

    kind: Literal["ok"] = "ok"
    rank: int
    regime: Regime
    memory: Memory
    step_times_s: Annotated[tuple[float, ...], Field(min_length=1)]
    """Throughput window."""
    phase_times_s: dict[str, tuple[float, ...]]
    """Phase window: every phase of PHASES, `total`, and `backward_step`."""
    losses: tuple[float, ...]
    """Mean over ranks, of every step after warm-up: throughput window, then phase window."""
    warmup_losses: tuple[float, ...]
    """The first is of the weights as they were built: the same on every backend."""
    metrics: dict[str, tuple[float, ...]]
    """The other scalars of the workload, like losses."""
    setup_s: float
    warmup_s: float
    threads: int
    """CPU threads of the rank's operators."""

    @field_validator("phase_times_s")
    @classmethod
    def _all_phases(cls, times_s: dict[str, tuple[float, ...]]) -> dict[str, tuple[float, ...]]:
        if times_s and set(times_s) != {*PHASES, "total", "backward_step"}:
            raise ValueError("phases are missing or unknown")
        return times_s


class RankWalked(Frozen):
    """This rank has walked as far as it could; its footprints are in a file of their own."""

    kind: Literal["walked"] = "walked"
    rank: int


class RankOom(Frozen):
    """This rank ran out of memory."""

    kind: Literal["oom"] = "oom"
    rank: int
    phase: str
    message: str
    at: float
    """Seconds since the epoch."""
    source: str | None = None
    """Who refused: see bench.runner.oom.Kind; `kernel` for its killer, `abort` for native code."""
    bytes_asked: int | None = None


class RankError(Frozen):
    """This rank raised, or ended without a result."""

    kind: Literal["error"] = "error"
    rank: int
    phase: str
    error: str
    """``Type: message``."""
    traceback: str
    at: float


class RankKilled(Frozen):
    """This rank's process was ended by a signal, seen by its server."""

    kind: Literal["killed"] = "killed"
    rank: int
    phase: str
    signal: str
    at: float
    by_bench: str | None = None
    """Why bench itself ended it: another rank had failed, or time was up."""


RankOutcome = Annotated[RankOk | RankWalked | RankOom | RankError | RankKilled, Field(discriminator="kind")]


class Ok(Frozen):
    """Measured; one entry per rank."""

    kind: Literal["ok"] = "ok"
    ranks: Annotated[tuple[RankOk, ...], Field(min_length=1)]


class Reported(Frozen):
    """Figures from elsewhere: means that somebody else computed, without samples, and only what they gave."""

    kind: Literal["reported"] = "reported"
    source: str
    """Where they come from, for people."""
    step_time_s_per_rank: tuple[float, ...] = ()
    """Mean step of each rank; a single one is all ranks' or the slowest's."""
    samples_per_s_global: float | None = None
    phase_times_s: dict[str, float] = Field(default_factory=dict)
    """Means, by names of PHASES, `total` and `backward_step`; those that were given."""
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    capacity_bytes: int | None = None
    capacity_share: float | None = None
    """Where only this was given."""


class Oom(Frozen):
    """A rank ran out of memory."""

    kind: Literal["oom"] = "oom"
    rank: int | None
    phase: str | None
    """null where imported figures do not say."""
    reason: str
    source: str | None = None
    bytes_asked: int | None = None
    """See RankOom."""


class Hang(Frozen):
    """The time limit passed."""

    kind: Literal["hang"] = "hang"
    reason: str


class Failed(Frozen):
    """Anything else that went wrong, with the rank it began on when that is known."""

    kind: Literal["failed"] = "failed"
    rank: int | None
    phase: str | None
    reason: str


class Skipped(Frozen):
    """Not run, for a reason that is known beforehand."""

    kind: Literal["skipped"] = "skipped"
    reason: str


Outcome = Annotated[Ok | Reported | Oom | Hang | Failed | Skipped, Field(discriminator="kind")]


SETTINGS = ("mixed_precision", "memory_limit_bytes", *Train.model_fields, *Measure.model_fields)
"""Fields of a cell that have a value also where the source of imported figures names none."""

Isolation = Literal["fork", "launch"]
"""A fork of a rank server, or an `accelerate launch` of its own."""


class Result(Frozen):
    """One attempt's stored record: `result.json`."""

    schema_version: Literal[1] = SCHEMA_VERSION
    attempt: Attempt
    axes: dict[str, JsonValue]
    """The values that name the cell to people, in the matrix's order."""
    outcome: Outcome
    machine: Machine
    isolation: Isolation | None
    """null when nothing was launched."""
    started_at: str
    """ISO 8601, UTC; of the import, for imported figures."""
    wall_s: float
    stated: tuple[str, ...] | None = None
    """Of imported figures, the settings that their source names: any other of `SETTINGS` holds a default in the cell
    that means nothing. null: bench ran it, and all are known."""

    def known(self, settings: dict[str, JsonValue]) -> dict[str, JsonValue]:
        """``settings`` of the cell without those that mean nothing."""
        unknown = () if self.stated is None else [name for name in SETTINGS if name not in self.stated]
        return {name: value for name, value in settings.items() if name not in unknown}


# What a rank says when another one is gone: a consequence, not the cause.
_PEER_LOST = re.compile(
    r"^Dist(Network|Store|Backend)Error\b|^ConnectionRe(set|fused)Error\b|ncclRemoteError|remote process exited"
    r"|(gloo|transport/tcp|ProcessGroup|TCPStore|c10d|socket).*"
    r"(clos(ed|ure)|reset|refused|timed? ?out|connectFullMesh|connection abort)"
    r"|connection (closed|reset) by peer|connection refused|software caused connection abort|connectFullMesh",
    re.IGNORECASE | re.DOTALL,
)


def classify(
    ranks: Sequence[RankOutcome],
    *,
    world_size: int,
    timed_out_after_s: float | None = None,
    launcher: str | None = None,
) -> Outcome:
    """The attempt's outcome from what its ranks left behind.

    Args:
        ranks: at most one per rank; a rank that left nothing is missing.
        timed_out_after_s: the time limit, when it passed.
        launcher: what is known of the launch when it ended before its ranks did.
    """
    measured = [rank for rank in ranks if isinstance(rank, RankOk)]
    if len(measured) == world_size:
        # All have spoken; what ended late, such as a launcher or the time, takes nothing back.
        return Ok(ranks=tuple(sorted(measured, key=lambda rank: rank.rank)))
    failures = [rank for rank in ranks if not isinstance(rank, RankOk | RankWalked)]
    causes = sorted((f for f in failures if not _is_consequence(f)), key=lambda f: (f.kind != "oom", f.at))
    if causes:
        return _outcome_of(causes[0])
    if timed_out_after_s is not None:
        phases = ", ".join(f"rank {f.rank} in {f.phase}" for f in sorted(failures, key=lambda f: f.rank))
        return Hang(reason=f"no result within {timed_out_after_s:g} s" + (f": {phases}" if phases else ""))
    if launcher is not None:
        return Failed(rank=None, phase=None, reason=launcher)
    if failures:
        return _outcome_of(min(failures, key=lambda f: f.at))
    missing = min(set(range(world_size)) - {rank.rank for rank in ranks}, default=None)
    return Failed(rank=missing, phase=None, reason=f"rank {missing} left no result and no word why")


def _is_consequence(failure: RankOom | RankError | RankKilled) -> bool:
    match failure:
        case RankKilled(by_bench=reason):
            return reason is not None
        case RankError(error=error):
            return bool(_PEER_LOST.search(error))
    return False


def _outcome_of(failure: RankOom | RankError | RankKilled) -> Oom | Failed:
    match failure:
        case RankOom(rank=rank, phase=phase, message=message, source=source, bytes_asked=asked):
            return Oom(rank=rank, phase=phase, reason=message, source=source, bytes_asked=asked)
        case RankError(rank=rank, phase=phase, error=error):
            return Failed(rank=rank, phase=phase, reason=error)
        case RankKilled(rank=rank, phase=phase, signal=signal, by_bench=by_bench):
            return Failed(rank=rank, phase=phase, reason=by_bench or f"killed by {signal}")
