"""The outcome of one rank, as data: its raw samples, or how it ended."""

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from bench.records.base import MOST, Amount, AtLeastOne, Count, Frozen, Positive, Rank
from bench.records.cell import Regime
from bench.records.phases import STORED_PHASES


class Memory(Frozen):
    """Peaks of one rank over the throughput window, reset at the warm-up boundary."""

    peak_allocated_bytes: Annotated[int, Field(ge=-MOST, le=MOST)] | None
    """CUDA: live tensors of the caching allocator. CPU: what the attempt added to the data segment, which is what a
    memory limit counts; negative if the attempt freed more than it allocated."""
    peak_reserved_bytes: Count | None
    """Blocks that the CUDA caching allocator reserved; null on a CPU."""
    peak_rss_bytes: Count | None
    """High-water mark of the process's resident memory; null where the kernel cannot reset it."""
    capacity_bytes: AtLeastOne
    """The memory available to this rank: its limit, or what was free when it started."""
    overhead_bytes: Count | None = None
    """CUDA memory outside the caching allocator that counts against capacity: NCCL, cuBLAS; null on a CPU."""
    alloc_retries: Count = 0
    """How often the caching allocator had to free its blocks and retry."""

    @property
    def used_bytes(self) -> int | None:
        """The peak of what the attempt needed: live tensors, and CUDA memory outside the allocator."""
        if self.peak_allocated_bytes is None:
            return None
        return self.peak_allocated_bytes + (self.overhead_bytes or 0)

    @property
    def held_bytes(self) -> int | None:
        """The peak to compare with capacity: on CUDA what the allocator reserved, and memory outside it."""
        if self.peak_reserved_bytes is None:
            return self.peak_allocated_bytes
        return self.peak_reserved_bytes + (self.overhead_bytes or 0)


class RankOk(Frozen):
    """One rank's raw samples."""

    kind: Literal["ok"] = "ok"
    rank: Rank
    regime: Regime
    memory: Memory
    step_times_s: Annotated[tuple[Positive, ...], Field(min_length=1)]
    """Throughput window."""
    phase_times_s: dict[str, Annotated[tuple[Amount, ...], Field(min_length=1)]]
    """Phase window: seconds of each step, by STORED_PHASES. Empty without a phase window."""
    losses: tuple[float, ...]
    """Mean over ranks, of every step after warm-up: throughput window, then phase window."""
    warmup_losses: tuple[float, ...]
    """The first loss is that of the initial weights: the same on every backend."""
    metrics: dict[str, tuple[float, ...]]
    """The other scalars of the workload, like losses."""
    setup_s: Amount
    warmup_s: Amount
    threads: Count
    """CPU threads for the rank's operators."""

    @field_validator("phase_times_s")
    @classmethod
    def _all_phases(cls, times_s: dict[str, tuple[float, ...]]) -> dict[str, tuple[float, ...]]:
        if times_s and set(times_s) != set(STORED_PHASES):
            raise ValueError("phases are missing or unknown")
        if len({len(samples) for samples in times_s.values()}) > 1:
            raise ValueError("phases have different numbers of steps")
        if not all(total > 0 for total in times_s.get("total", ())):
            raise ValueError("a step took no time")
        return times_s

    @property
    def n_phase_steps(self) -> int:
        return len(self.phase_times_s.get("total", ()))

    @model_validator(mode="after")
    def _a_value_per_step(self) -> Self:
        steps = len(self.step_times_s) + self.n_phase_steps
        for name, values in {"losses": self.losses, **self.metrics}.items():
            if len(values) != steps:
                raise ValueError(f"{name} are of {len(values)} steps, times of {steps}")
        return self


class RankWalked(Frozen):
    """This rank finished its walk; its footprints are in a separate file."""

    kind: Literal["walked"] = "walked"
    rank: Rank


class RankAudited(Frozen):
    """This rank finished its audit; its findings are in a separate file."""

    kind: Literal["audited"] = "audited"
    rank: Rank


class RankOom(Frozen):
    """This rank ran out of memory."""

    kind: Literal["oom"] = "oom"
    rank: Rank
    phase: str
    message: str
    at: float
    """Seconds since the epoch."""
    source: str | None = None
    """What refused the memory: see bench.runner.oom.Kind; `kernel` for the OOM killer, `abort` for native code."""
    bytes_asked: Count | None = None


class RankError(Frozen):
    """This rank raised, or ended without a result."""

    kind: Literal["error"] = "error"
    rank: Rank
    phase: str
    error: str
    """``Type: message``."""
    traceback: str
    at: float
    place: str | None = None
    """The workload's place in the code."""


class RankKilled(Frozen):
    """This rank's process was ended by a signal, seen by its server."""

    kind: Literal["killed"] = "killed"
    rank: Rank
    phase: str
    signal: str
    at: float
    by_bench: str | None = None
    """Why bench ended it, if it did: another rank had failed, or the time limit."""
    place: str | None = None
    """The workload's place in the code, if the rank could still report it."""
    last_words: str | None = None
    """The end of its log."""


RankOutcome = Annotated[
    RankOk | RankWalked | RankAudited | RankOom | RankError | RankKilled, Field(discriminator="kind")
]
