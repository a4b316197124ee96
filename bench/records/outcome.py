"""What an attempt came to, as data. The schema's history stands beside its version."""

from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, field_validator, model_validator

from bench.records.base import LARGEST, Amount, AtLeastOne, Count, Device, Finite, Frozen, Positive, Rank, Settings
from bench.records.cell import Attempt, Measure, Train
from bench.records.conditions import Conditions
from bench.records.hang import Stuck
from bench.records.machine import Machine
from bench.records.rank_outcome import RankOk
from bench.units import counted

SCHEMA_VERSION: Literal[2] = 2
"""1: first version. 2: a hang holds what each rank was doing, a failure its fault and evidence, a result its retry
and what the machine did beside it."""


class Ok(Frozen):
    """Measured; one entry per rank."""

    kind: Literal["ok"] = "ok"
    ranks: Annotated[tuple[RankOk, ...], Field(min_length=1)]
    """In order."""

    @model_validator(mode="after")
    def _one_world(self) -> Self:
        numbers, size = [rank.rank for rank in self.ranks], len(self.ranks)
        if numbers != list(range(size)):
            raise ValueError(f"ranks are numbered {', '.join(map(str, numbers))}")
        for rank in self.ranks:
            if rank.regime.world_size != size:
                raise ValueError(f"rank {rank.rank} is of a world of {rank.regime.world_size}, here are {size}")
        return self


class Reported(Frozen):
    """Figures from elsewhere: means that somebody else computed, without samples, and only what they gave."""

    kind: Literal["reported"] = "reported"
    source: str
    """Where they come from, for people."""
    step_time_s_per_rank: tuple[Positive, ...] = ()
    """Mean step of each rank; a single one is all ranks' or the slowest's."""
    samples_per_s_global: Positive | None = None
    phase_times_s: dict[str, Amount] = Field(default_factory=dict)
    """Means, by names of PHASES, `total` and `backward_step`; those that were given."""
    peak_allocated_bytes: Count | None = None
    peak_reserved_bytes: Count | None = None
    capacity_bytes: AtLeastOne | None = None
    capacity_share: Annotated[Finite, Field(gt=0, le=LARGEST)] | None = None
    """Where only this was given."""

    @field_validator("phase_times_s")
    @classmethod
    def _took_time(cls, means_s: dict[str, float]) -> dict[str, float]:
        if means_s.get("total") == 0:
            raise ValueError("a step took no time")
        return means_s

    def held_bytes(self, device: Device) -> int | None:
        """The peak to set against capacity. A GPU's allocator holds more than is allocated, nobody knows how much."""
        return self.peak_reserved_bytes or (self.peak_allocated_bytes if device == "cpu" else None)


class Oom(Frozen):
    """A rank ran out of memory."""

    kind: Literal["oom"] = "oom"
    rank: Rank | None
    phase: str | None
    """null where imported figures do not say."""
    reason: str
    source: str | None = None
    bytes_asked: Count | None = None
    """See RankOom."""


class Hang(Frozen):
    """No progress for too long, or the time limit passed."""

    kind: Literal["hang"] = "hang"
    reason: str
    stuck: tuple[Stuck, ...] = ()
    """What each rank was doing; those that could say so."""


Fault = Literal[
    "error",
    "missing_package",
    "disk",
    "desync",
    "regime",
    "nan_loss",
    "killed",
    "ended",
    "launch",
    "rendezvous",
    "nccl_init",
]
"""What kind of failure: the rank raised; it lacks a package; it could not write; ranks issued unlike collectives;
another regime ran than was asked for; the loss is no finite number; a signal ended it; it ended by itself without a
result; the launcher or a server ended; the ranks did not find each other (a port was taken); NCCL did not start."""
INFRASTRUCTURE: tuple[Fault, ...] = ("rendezvous", "nccl_init")
"""Faults of the machine at one moment, which an attempt is given a second chance for. All others are findings."""


class Failed(Frozen):
    """Anything else that went wrong, with the rank it began on when that is known."""

    kind: Literal["failed"] = "failed"
    fault: Fault = "error"
    rank: Rank | None
    phase: str | None
    reason: str
    evidence: str | None = None
    """What stands behind the reason: a traceback's end, or the last lines of a log."""


class Skipped(Frozen):
    """Not run, for a reason that is known beforehand."""

    kind: Literal["skipped"] = "skipped"
    reason: str


Outcome = Annotated[Ok | Reported | Oom | Hang | Failed | Skipped, Field(discriminator="kind")]


Tone = Literal["good", "warning", "bad", "neutral"]
"""What a color stands for; the renderers choose the color."""


@dataclass(frozen=True, kw_only=True)
class OutcomeStyle:
    """How a report shows one kind of outcome."""

    word: str
    """In tables."""
    verb: str
    """In sentences, after the batch."""
    tone: Tone
    failed: bool = False
    """Whether it was started and ended without a measurement: its logs explain why."""


OutcomeKind = Literal["ok", "reported", "oom", "hang", "failed", "skipped"]
OUTCOME_STYLES: dict[OutcomeKind, OutcomeStyle] = {
    "ok": OutcomeStyle(word="ok", verb="was measured", tone="good"),
    "reported": OutcomeStyle(word="imported", verb="was imported", tone="good"),
    "oom": OutcomeStyle(word="oom", verb="ran out of memory", tone="warning", failed=True),
    "hang": OutcomeStyle(word="hang", verb="hung", tone="bad", failed=True),
    "failed": OutcomeStyle(word="failed", verb="failed", tone="bad", failed=True),
    "skipped": OutcomeStyle(word="skipped", verb="was skipped", tone="neutral"),
}
"""The one table of how outcomes are shown. Terminal, HTML page, tables and doubts all read it."""
THRASHING = OutcomeStyle(word="thrashing", verb="thrashed", tone="warning")
"""A measured batch that fits and must not be recommended."""


SETTINGS = ("mixed_precision", "memory_limit_bytes", *Train.model_fields, *Measure.model_fields)
"""Fields of a cell that have a value also where the source of imported figures names none."""

Isolation = Literal["fork", "launch"]
"""A fork of a rank server, or an `accelerate launch` of its own."""


class Result(Frozen):
    """One attempt's stored record: `result.json`."""

    schema_version: Literal[1, 2] = SCHEMA_VERSION
    attempt: Attempt
    axes: Settings
    """The values that name the cell to people, in the matrix's order."""
    outcome: Outcome
    machine: Machine
    isolation: Isolation | None
    """null when nothing was launched."""
    started_at: str
    """ISO 8601, UTC; of the import, for imported figures."""
    wall_s: Amount
    retried: str | None = None
    """Why an earlier try of this attempt failed, when it was given a second one."""
    conditions: Conditions | None = None
    """What the machine did beside it; null when nothing was launched, and in imported figures."""
    stated: tuple[str, ...] | None = None
    """Of imported figures, the settings that their source names: any other of `SETTINGS` holds a default in the cell
    that means nothing. null: bench ran it, and all are known."""

    @model_validator(mode="after")
    def _as_asked(self) -> Self:
        """What bench measured has the ranks and the steps of its attempt."""
        if not isinstance(self.outcome, Ok):
            return self
        size, measure = self.attempt.cell.num_processes, self.attempt.measure
        asked = (measure.warmup_steps, measure.steps, measure.phase_steps)
        if len(self.outcome.ranks) != size:
            raise ValueError(f"it has {counted(len(self.outcome.ranks), 'rank')}, its cell {size}")
        for rank in self.outcome.ranks:
            found = (len(rank.warmup_losses), len(rank.step_times_s), rank.n_phase_steps)
            if found != asked:
                words = "{} warm-up, {} measured and {} phase steps"
                raise ValueError(f"rank {rank.rank} has {words.format(*found)}, its attempt {words.format(*asked)}")
        return self

    def known(self, settings: dict[str, JsonValue]) -> dict[str, JsonValue]:
        """``settings`` of the cell without those that mean nothing."""
        unknown = () if self.stated is None else [name for name in SETTINGS if name not in self.stated]
        return {name: value for name, value in settings.items() if name not in unknown}
