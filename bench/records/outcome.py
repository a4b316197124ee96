"""The outcome of an attempt and its stored result."""

from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, field_validator, model_validator

from bench.records.account import Account
from bench.records.base import (
    LARGEST,
    Amount,
    AtLeastOne,
    Count,
    Device,
    Finite,
    Frozen,
    Moment,
    Positive,
    Rank,
    Settings,
)
from bench.records.cell import Attempt, Measure, Train
from bench.records.conditions import Conditions
from bench.records.figures import PEAK_ALLOCATED, PEAK_RESERVED, STATED, Figure
from bench.records.hang import Stuck
from bench.records.machine import Machine
from bench.records.rank_outcome import RankOk
from bench.records.sources import Sources
from bench.units import counted

SCHEMA_VERSION: Literal[1] = 1
"""Of stored results. bench reads no other."""


class Ok(Frozen):
    """Measured, with one entry per rank."""

    kind: Literal["ok"] = "ok"
    ranks: Annotated[tuple[RankOk, ...], Field(min_length=1)]
    """Ordered by rank, from 0."""

    @model_validator(mode="after")
    def _one_world(self) -> Self:
        numbers, size = [rank.rank for rank in self.ranks], len(self.ranks)
        if numbers != list(range(size)):
            raise ValueError(f"ranks are numbered {', '.join(map(str, numbers))}")
        for rank in self.ranks:
            if rank.regime.world_size != size:
                raise ValueError(f"rank {rank.rank} is of a world of {rank.regime.world_size}, here are {size}")
        return self

    def samples_per_step(self, attempt: Attempt) -> float:
        """Of all ranks and one optimizer step: as observed, else as the attempt asks for."""
        asked = attempt.samples_of_rank(len(self.ranks[0].step_times_s))
        taken = [rank.observed.taken(asked) for rank in self.ranks if rank.observed is not None]
        known = [samples for samples in taken if samples is not None]
        if len(known) < len(self.ranks):
            return attempt.batch_global
        return sum(known) / len(self.ranks[0].step_times_s)


class Stated(Frozen):
    """Figures that a file states: means without samples, and only those that it gives."""

    step_time_s_per_rank: tuple[Positive, ...] = ()
    """Mean step time of each rank. A single value is the mean of all ranks or that of the slowest."""
    samples_per_s_global: Positive | None = None
    phase_times_s: dict[str, Amount] = Field(default_factory=dict)
    """Means by phase, keys of STORED_PHASES; only those that the source gives."""
    figures: dict[str, AtLeastOne | Annotated[Finite, Field(gt=0, le=LARGEST)]] = Field(default_factory=dict)
    """By the names of `STATED`. The share of capacity is given by the source, or peak divided by capacity."""

    @field_validator("figures")
    @classmethod
    def _known_figures(cls, figures: dict[str, float]) -> dict[str, float]:
        if unknown := [name for name in figures if name not in STATED]:
            raise ValueError(f"{unknown[0]} is no figure that a source may state")
        return figures

    def of(self, figure: Figure) -> float | None:
        return self.figures.get(figure.name)

    @field_validator("phase_times_s")
    @classmethod
    def _took_time(cls, means_s: dict[str, float]) -> dict[str, float]:
        if means_s.get("total") == 0:
            raise ValueError("a step took no time")
        return means_s

    def held_bytes(self, device: Device) -> float | None:
        """The peak to compare with capacity. On a GPU, only the reserved peak: the allocated one is smaller, by an
        unknown amount."""
        return self.of(PEAK_RESERVED) or (self.of(PEAK_ALLOCATED) if device == "cpu" else None)


class Reported(Stated):
    """Imported figures."""

    kind: Literal["reported"] = "reported"
    source: str
    """Where the figures come from, in words."""


class Scripted(Stated):
    """Figures that a script of the user wrote when bench ran it."""

    kind: Literal["scripted"] = "scripted"


class Oom(Frozen):
    """A rank ran out of memory."""

    kind: Literal["oom"] = "oom"
    rank: Rank | None
    phase: str | None
    """null if imported figures do not say."""
    reason: str
    source: str | None = None
    bytes_asked: Count | None = None
    """See RankOom."""


class Hang(Frozen):
    """No progress for too long, or the time limit was reached."""

    kind: Literal["hang"] = "hang"
    reason: str
    stuck: tuple[Stuck, ...] = ()
    """What each rank was doing, for the ranks that could report it."""


Fault = Literal[
    "error",
    "workload",
    "missing_package",
    "disk",
    "desync",
    "regime",
    "nan_loss",
    "host_memory",
    "killed",
    "ended",
    "launch",
    "rendezvous",
    "nccl_init",
    "infrastructure",
]
"""The kind of failure.

error            the rank raised an exception
workload         the workload does not keep to its protocol, such as a forward without a loss
missing_package  a package is not installed
disk             the rank could not write
desync           ranks issued different collectives
regime           another regime ran than was requested
nan_loss         the loss is not a finite number
host_memory      the memory of a GPU's host ran out
killed           a signal ended the rank
ended            the rank exited without a result
launch           the launcher or a rank server exited
rendezvous       the ranks could not connect, such as when a port was taken
nccl_init        NCCL did not start
infrastructure   the job that it ran in ended: a node was lost, or the job was cancelled, preempted or out of time
"""
INFRASTRUCTURE: tuple[Fault, ...] = ("rendezvous", "nccl_init", "infrastructure")
"""Temporary faults of the machine: the attempt is retried once. All other faults are results."""


class Failed(Frozen):
    """Any other failure, with the rank on which it began if that is known."""

    kind: Literal["failed"] = "failed"
    fault: Fault = "error"
    rank: Rank | None
    phase: str | None
    reason: str
    evidence: str | None = None
    """Evidence for the reason: the end of a traceback, or the last lines of a log."""


class Skipped(Frozen):
    """Not run, for a reason known in advance."""

    kind: Literal["skipped"] = "skipped"
    reason: str


Outcome = Annotated[Ok | Reported | Scripted | Oom | Hang | Failed | Skipped, Field(discriminator="kind")]


Tone = Literal["good", "warning", "bad", "neutral"]
"""What a color stands for; the renderers choose the color."""


@dataclass(frozen=True, kw_only=True)
class KindTraits:
    """How reports show outcomes of one kind, and how the commands treat them."""

    word: str
    """In tables."""
    verb: str
    """In sentences, after the batch."""
    tone: Tone
    explained_by_logs: bool = False
    """It was started and ended without a measurement."""
    measured: bool = False
    """bench ran it, and it gave figures."""
    fails: bool = False
    """Counts as a failure for the exit code."""
    rerun: tuple[str, ...] = ()
    """Values of ``--rerun`` that measure it again."""


OutcomeKind = Literal["ok", "reported", "scripted", "oom", "hang", "failed", "skipped"]
KINDS: dict[OutcomeKind, KindTraits] = {
    "ok": KindTraits(word="ok", verb="was measured", tone="good", measured=True, rerun=("all",)),
    "reported": KindTraits(word="imported", verb="was imported", tone="good"),
    "scripted": KindTraits(word="ok", verb="was measured", tone="good", measured=True, rerun=("all",)),
    "oom": KindTraits(
        word="oom", verb="ran out of memory", tone="warning", explained_by_logs=True, rerun=("oom", "all")
    ),
    "hang": KindTraits(
        word="hang", verb="hung", tone="bad", explained_by_logs=True, fails=True, rerun=("failed", "all")
    ),
    "failed": KindTraits(
        word="failed", verb="failed", tone="bad", explained_by_logs=True, fails=True, rerun=("failed", "all")
    ),
    "skipped": KindTraits(word="skipped", verb="was skipped", tone="neutral"),
}
"""All kinds of outcome. To add one: its class above and in `Outcome`, its name in `OutcomeKind`, an entry here, and
what leads to it in bench/diagnosis/classify.py. Every command, table and picture reads this table."""
THRASHING = KindTraits(word="thrashing", verb="thrashed", tone="warning")
"""How reports show a measured batch that fits and must not be recommended."""
INVALID = KindTraits(word="invalid", verb="was measured, but its figures are wrong", tone="bad", measured=True)
"""How reports show a measured row whose figures are wrong, or those of something else."""


SETTINGS = (
    "num_nodes",
    "mixed_precision",
    "memory_limit_bytes",
    *Train.model_fields,
    *Measure.model_fields,
)
"""Fields of a cell that hold a default where the source of imported figures does not give a value."""

Isolation = Literal["fork", "launch", "script"]
"""How an attempt's processes start: forked from rank servers, by a separate `accelerate launch`, or by the user's
script."""


ROUNDING_S = 1e-3


class Result(Frozen):
    """One attempt's stored record: `result.json`."""

    schema_version: Literal[1] = SCHEMA_VERSION
    attempt: Attempt
    axes: Settings
    """The values that identify the cell in reports, in the matrix's order."""
    outcome: Outcome
    machine: Machine
    isolation: Isolation | None
    """null if nothing was launched."""
    started_at: Moment
    """ISO 8601, UTC. For imported figures, the time of the import."""
    wall_s: Amount
    """From before its files are written until bench has read what its ranks left."""
    account: Account | None = None
    """Where ``wall_s`` went. null: not known, as of a script, or nothing was launched."""
    retried: str | None = None
    """Why the first try of this attempt failed, if it was retried."""
    conditions: Conditions | None = None
    """What else the machine did meanwhile; null if nothing was launched, and for imported figures."""
    stated: tuple[str, ...] | None = None
    """For imported figures, the settings that their source gives; for a script, those that it gets. In the cell, the
    others of `SETTINGS` hold defaults that mean nothing. null: bench measured it, so all settings are real."""

    notes: Settings = Field(default_factory=dict)
    """For imported figures, what bench has no place for, by the names of the source: MFU, tokens/s, remarks."""
    sources: Sources | None = None
    """What its ranks ran: bench's runner and the workload's modules. null: not known, or nothing was launched."""

    @model_validator(mode="after")
    def _as_requested(self) -> Self:
        """An account fits in the wall time. A measured result has the ranks and the steps that its attempt requests."""
        if self.account is not None and self.account.accounted_s > self.wall_s + ROUNDING_S:
            raise ValueError(f"its account has {self.account.accounted_s:g} s, and it took {self.wall_s:g} s")
        if not isinstance(self.outcome, Ok):
            return self
        size, measure = self.attempt.cell.num_processes, self.attempt.measure
        requested = (measure.warmup_steps, measure.steps, measure.phase_steps)
        if len(self.outcome.ranks) != size:
            raise ValueError(f"it has {counted(len(self.outcome.ranks), 'rank')}, its cell {size}")
        for rank in self.outcome.ranks:
            warm = min(len(rank.warmup_losses), measure.warmup_steps)  # warm-up may take longer
            stored = (warm, len(rank.step_times_s), rank.n_phase_steps)
            if rank.observed is not None:  # without losses; it may have ended before its phases
                stored = (measure.warmup_steps, len(rank.step_times_s), rank.n_phase_steps or measure.phase_steps)
            if stored != requested:
                words = "{} warm-up, {} measured and {} phase steps"
                raise ValueError(
                    f"rank {rank.rank} has {words.format(*stored)}, its attempt {words.format(*requested)}"
                )
        return self

    def known(self, settings: dict[str, JsonValue]) -> dict[str, JsonValue]:
        """``settings`` of the cell without the defaults that mean nothing."""
        unknown = () if self.stated is None else [name for name in SETTINGS if name not in self.stated]
        return {name: value for name, value in settings.items() if name not in unknown}
