"""What is measured: frozen data with ids that are hashes of the content, so they survive a reordered file."""

import hashlib
import json
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from bench.records.base import AtLeastOne, Count, Finite, Frozen, Settings

MixedPrecision = Literal["bf16", "no"]


class Measure(Frozen):
    """How a step is measured. On a CPU the matrix loader uses smaller numbers unless the user gives them."""

    warmup_steps: Annotated[int, Field(ge=1)] = 20
    """Steps that run first and are not counted. At least one: the first step allocates the optimizer's state."""
    steps: Annotated[int, Field(ge=1)] = 50
    """Steps of the throughput window: no synchronisation inside the step."""
    phase_steps: Annotated[int, Field(ge=0)] = 10
    """Steps of the phase window: synchronised at every phase boundary. 0 leaves the window out."""
    seed: Annotated[int, Field(ge=0)] = 1000
    """Seeds the weights and the samples; every backend sees the same ones."""
    dataloader_workers: Annotated[int, Field(ge=0)] = 0
    """Worker processes per rank that prepare samples."""
    dataloader_prefetch: Annotated[int, Field(ge=1)] = 2
    """Batches that each worker keeps ready."""


class Train(Frozen):
    """Switches of the training step that belong to no workload."""

    optimizer: Literal["adamw", "none"] = "adamw"
    """``none`` runs forward and backward only."""
    master_weights: bool = True
    """fp32 copies of bf16 weights, which the optimizer steps. Without them Adam's moments are bf16: a control, not a
    way to train. FSDP and DeepSpeed have masters of their own."""
    fused: bool | None = None
    """Fused AdamW on or off; null leaves the choice to torch."""
    learning_rate: Annotated[Finite, Field(ge=0)] = 1e-4
    weight_decay: Annotated[Finite, Field(ge=0)] = 0.01
    max_grad_norm: Annotated[Finite, Field(gt=0)] = 1.0
    """Gradients are clipped to this global norm."""
    find_unused_parameters: bool = False
    """Let DDP search for parameters that had no part in the loss. Costs a walk over the graph every step."""
    compile: bool = False
    """torch.compile each unit of the model."""


class Cell(Frozen):
    """One point of the matrix without its batch: everything that decides what the step computes and where."""

    backend: str
    """A built-in backend, or the name that the matrix gives to the user's own accelerate config."""
    accelerate: Settings | None = None
    """The content of the user's own accelerate config; null for a built-in backend."""
    workload: str
    """``pi07``, or ``package.module:Class`` of the user's own."""
    options: Settings
    """Every field of the workload's config, resolved, defaults included."""
    num_processes: Annotated[int, Field(ge=1)]
    mixed_precision: MixedPrecision
    memory_limit_bytes: Annotated[int, Field(ge=1)] | None = None
    """Enforced per rank; null means all that the device has."""
    train: Train = Train()
    measure: Measure

    @property
    def id(self) -> str:
        """Ten hex digits of the content's hash."""
        return _digest(self.model_dump(mode="json"))

    @property
    def slug(self) -> str:
        """The cell's folder name."""
        return f"{self.backend}-{self.id}"


class Regime(Frozen):
    """What really ran, observed in the process; a backend's entry says what was asked for in the same words."""

    world_size: AtLeastOne
    distributed_type: str
    """accelerate's name: NO, MULTI_CPU, MULTI_GPU, FSDP, DEEPSPEED."""
    sharding: str
    """none, NO_SHARD, FULL_SHARD, SHARD_GRAD_OP, fully_shard, zero1, zero2, zero3."""
    parameters: AtLeastOne
    """Scalars in the model, over all ranks."""
    sharded_parameters: Count
    """Scalars of parameters of which this rank holds only a part."""
    weights_dtype: str
    masters_dtype: str | None
    """What the optimizer updates; null without an optimizer."""
    optimizer_dtype: str | None
    """Adam's moments."""
    reduction_dtype: str | None
    """Gradients on the wire; null with one rank."""

    @model_validator(mode="after")
    def _parts_of_the_whole(self) -> Self:
        if self.sharded_parameters > self.parameters:
            raise ValueError(f"{self.sharded_parameters} of {self.parameters} parameters are sharded")
        return self


class Attempt(Frozen):
    """One cell at one batch, measured in processes that no other attempt has touched."""

    cell: Cell
    batch_per_rank: Annotated[int, Field(ge=1)]
    short: bool = False
    """A few steps: enough to see whether the batch fits and about how fast it is."""

    @property
    def measure(self) -> Measure:
        """The cell's own, or what a short attempt makes of it."""
        if not self.short:
            return self.cell.measure
        return self.cell.measure.model_copy(update={"warmup_steps": 1, "steps": 3, "phase_steps": 0})

    @property
    def slug(self) -> str:
        """The attempt's folder below the run's ``attempts/``."""
        return f"{self.cell.slug}/b{self.batch_per_rank}{'-short' if self.short else ''}"


class Walk(Frozen):
    """A scouting attempt: one cell at growing batches, in one process, a step or two each. What it sees is a hint."""

    cell: Cell
    batches_per_rank: tuple[int, ...]

    @property
    def slug(self) -> str:
        return f"{self.cell.slug}/walk"


AuditKind = Literal["collectives", "dataloader", "params"]


class Audit(Frozen):
    """A look at one property of a cell in processes of its own. What it finds is no measurement of steps."""

    cell: Cell
    kind: AuditKind
    batch_per_rank: Annotated[int, Field(ge=1)]
    steps: Annotated[int, Field(ge=1)]
    """Steps, or batches, to look at."""

    @property
    def slug(self) -> str:
        return f"{self.cell.slug}/audit-{self.kind}"


def _digest(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:10]
