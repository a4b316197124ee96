"""What is measured: cells, attempts and audits. An id hashes the content, so it survives a reordered matrix file."""

import hashlib
import json
import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, JsonValue, WithJsonSchema, model_validator

from bench.records.base import AtLeastOne, Count, Finite, Frozen, Settings, Share
from bench.records.precision import COMPUTES_IN
from bench.records.script import Script

Offload = Literal["none", "optimizer", "params"]
Weights = Literal["fp32", "bf16"]
Compile = Literal["none", "unit", "model"]

_OPTIMIZER = r"^(adamw|muon|none|[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*)$"


def _optimizer(name: str) -> str:
    if not re.fullmatch(_OPTIMIZER, name):
        raise ValueError("choose adamw, muon, none, or your own as package.module:Class")
    return name


Optimizer = Annotated[str, AfterValidator(_optimizer), WithJsonSchema({"type": "string", "pattern": _OPTIMIZER})]


COST = "cost"
"""Marks a setting that changes what a step costs, and not its losses."""
SWITCH = "switch"
"""Marks a setting that most runs leave alone: a report names it only where it differs from its default."""
PARTLY = "partly"
"""Marks a setting that does not apply to every cell: cells of which only one has it may be compared."""
MOST_MICRO_BATCHES = 1_000_000


class Measure(Frozen):
    """How a step is measured. Unless the user gives them, the matrix loader uses fewer steps on a CPU, and on CUDA two
    workers of the loader and a warm-up by time."""

    warmup_steps: Annotated[int, Field(ge=1)] = 20
    """Steps before the measurement. At least one, because the first step allocates the optimizer's state."""
    warmup_s: Annotated[Finite, Field(ge=0), SWITCH] = 0.0
    """Seconds before the measurement: warm-up goes on, beyond its steps, until every rank has spent as long. By default
    10 on CUDA, whose clocks settle in seconds."""
    steps: Annotated[int, Field(ge=1)] = 50
    """Steps of the throughput window, without synchronization inside a step."""
    phase_steps: Annotated[int, Field(ge=0)] = 10
    """Steps of the phase window, synchronized at every phase boundary. 0 skips the window."""
    seed: Annotated[int, Field(ge=0)] = 1000
    """Seed of the weights and the samples. Every backend gets the same weights and samples."""
    dataloader_workers: Annotated[int, Field(ge=0)] = 0
    """Worker processes per rank that prepare samples. By default 2 on CUDA, and 0 on a CPU: there they would take cores
    from the ranks."""
    dataloader_prefetch: Annotated[int, Field(ge=1)] = 2
    """Batches that each worker keeps ready."""
    checkpoint: Annotated[bool, SWITCH] = False
    """After the steps, save a checkpoint and load it again: the time of both, the bytes, and whether training goes on
    with the same losses."""
    count_tensors: Annotated[bool, SWITCH] = False
    """On a CPU, count tensors in two more steps, after all that is measured: about 3 s. A GPU always does."""


class Train(Frozen):
    """Settings of the training step that do not depend on the workload."""

    optimizer: Optimizer = "adamw"
    """``adamw``; ``muon``: torch's Muon for the matrices of hidden layers and AdamW for the rest; ``none``: forward and
    backward only; or your own, as ``package.module:Class``."""
    weights: Annotated[Weights, COST, PARTLY] = "fp32"
    """single and ddp in bf16: ``fp32``, autocast over fp32 weights, which the optimizer updates, as accelerate does;
    or ``bf16``, without autocast, with ``master_weights``. Other backends hold weights in their own way: their cells
    keep the default."""
    master_weights: bool = True
    """Keep fp32 copies of bf16 weights for the optimizer to update. Without them, Adam's moments are bf16 too: a
    control, not a way to train. FSDP and DeepSpeed always keep their own."""
    fused: Annotated[bool | None, COST] = None
    """AdamW's fused implementation on or off. null: on for a GPU, unless `foreach` is set or state is offloaded;
    elsewhere torch chooses. Off, and without `foreach`: the plain loop."""
    foreach: Annotated[bool | None, COST, SWITCH] = None
    """AdamW's foreach implementation on or off; null: see `fused`."""
    learning_rate: Annotated[Finite, Field(ge=0)] = 1e-4
    weight_decay: Annotated[Finite, Field(ge=0)] = 0.01
    max_grad_norm: Annotated[Finite, Field(gt=0)] | None = 1.0
    """Gradients are clipped to this global norm. null: they are not clipped."""
    accumulate: Annotated[int, Field(ge=1, le=MOST_MICRO_BATCHES)] = 1
    """Micro-batches of one optimizer step: each rank adds up the gradients of so many batches. `batch` is the size of
    one of them; samples/s counts all."""
    global_batch: Annotated[int, Field(ge=1, le=2**40)] | None = None
    """Instead of `accumulate`: the samples of one optimizer step of all ranks. Each rank takes as many micro-batches of
    `batch` as that needs, and only batches that divide it are measured."""
    accumulate_sync: Annotated[Literal["last", "each"] | None, COST, PARTLY] = None
    """With `accumulate`: reduce gradients between ranks in the ``last`` micro-batch of a step, or in ``each``. null: as
    accelerate does, the last; ZeRO-2 and ZeRO-3 can only reduce in each."""
    find_unused_parameters: Annotated[bool, COST] = False
    """Let DDP look for parameters that the loss does not depend on. Walks the graph every step."""
    bucket_mb: Annotated[int, Field(ge=1), COST, SWITCH] = 25
    """ddp: reduce gradients as soon as they fill a bucket of so many MiB. With 25, torch's default, the first bucket
    has 1 MiB."""
    compile: Annotated[Compile, COST] = "none"
    """torch.compile each ``unit`` of the model, or the whole ``model``."""
    reshard_after_forward: Annotated[bool | Annotated[int, Field(ge=2)] | None, COST, SWITCH] = None
    """fsdp2: free the gathered weights of a unit after its forward, and gather them again for its backward. A number
    spreads them over that many ranks instead. null: the backend's default, true."""
    dp_replicate_size: Annotated[int, Field(ge=1), COST, SWITCH] = 1
    """fsdp2: the number of groups of ranks that each shard a whole model: hybrid sharding."""
    offload: Annotated[Offload, COST, SWITCH] = "none"
    """Keep the optimizer's state and its step on the host, or the weights too."""
    zero_overlap_comm: Annotated[bool | None, COST, SWITCH] = None
    """ZeRO: reduce gradients on a stream of their own while backward runs. null: DeepSpeed's default, true for ZeRO-3
    and false for ZeRO-1 and ZeRO-2."""
    numa_binding: Annotated[bool, COST, SWITCH] = True
    """Bind ranks to NUMA nodes where the topology is known: on CUDA to the cores beside the GPU, on a CPU as many to
    each node. Not under your own accelerate config, nor with ``cpu_affinity``."""
    cpu_affinity: Annotated[bool, COST, SWITCH] = False
    """Bind each rank to the cores of its GPU's NUMA node, as accelerate's ``enable_cpu_affinity`` does."""
    allow_unused: Annotated[bool, SWITCH] = False
    """Accept rows of which more than a tenth of the trained parameters get no gradient, or of all parameters are in
    modules that do not run. Without it, such rows are invalid: see *Rows to doubt*."""

    @model_validator(mode="after")
    def _one_implementation(self) -> Self:
        if self.fused and self.foreach:
            raise ValueError("fused and foreach are two implementations of AdamW: choose one")
        return self


COST_SETTINGS = frozenset(name for name, field in Train.model_fields.items() if COST in field.metadata)
PARTLY_APPLY = frozenset(name for name, field in Train.model_fields.items() if PARTLY in field.metadata)
SWITCHES = {
    name: field.default
    for kind in (Measure, Train)
    for name, field in kind.model_fields.items()
    if SWITCH in field.metadata
}
"""The defaults of such settings."""

HOLD_WHOLE_WEIGHTS = ("single", "ddp")
"""Backends, and their families, whose weights `Train.weights` decides in bf16: the others shard or cast them their own
way."""


class Cell(Frozen):
    """One point of the matrix without its batch: everything that determines what a step computes and where."""

    backend: str
    """A built-in backend, or the name of the user's accelerate config in the matrix."""
    accelerate: Settings | None = None
    """The content of the user's accelerate config; null for a built-in backend."""
    workload: str
    """A bundled workload such as ``pi07``, the user's ``package.module:Class``, or the name of a script."""
    options: Settings
    """Every field of the workload's config, including presets and defaults; or the values that a script gets."""
    num_processes: Annotated[int, Field(ge=1)]
    """Ranks, on all nodes together."""
    num_nodes: Annotated[int, Field(ge=1)] = 1
    """Nodes over which the ranks are spread evenly."""
    mixed_precision: str | None
    """A `MixedPrecision`. Of imported figures whatever their source says, such as fp8; null where it says nothing."""
    memory_limit_bytes: Annotated[int, Field(ge=1)] | None = None
    """Enforced per rank; null allows all of the device's memory."""
    train: Train = Train()
    measure: Measure
    script: Script | None = None
    """The script that trains, instead of bench's runner. Of the other settings, it gets what its placeholders name."""

    @model_validator(mode="after")
    def _spread_evenly(self) -> Self:
        if self.num_processes % self.num_nodes:
            raise ValueError(f"{self.num_processes} ranks cannot be spread evenly over {self.num_nodes} nodes")
        return self

    @model_validator(mode="after")
    def _one_accumulation(self) -> Self:
        if self.train.global_batch is not None and self.train.accumulate > 1:
            raise ValueError("global_batch and accumulate both say how many batches make one step")
        return self

    def divides(self, batch_per_rank: int) -> bool:
        """Whether micro-batches of this size make the global batch."""
        whole = self.train.global_batch
        return whole is None or whole % (self.num_processes * batch_per_rank) == 0

    def micro_batches(self, batch_per_rank: int) -> int:
        """Micro-batches of a rank in one optimizer step."""
        if self.train.global_batch is None:
            return self.train.accumulate
        return self.train.global_batch // (self.num_processes * batch_per_rank)

    def rank_samples_per_step(self, batch_per_rank: int) -> int:
        """Of one optimizer step."""
        return batch_per_rank * self.micro_batches(batch_per_rank)

    def samples_per_step(self, batch_per_rank: int) -> int:
        """Of one optimizer step and all ranks."""
        return self.num_processes * self.rank_samples_per_step(batch_per_rank)

    def reduces_each(self, sharding: str) -> bool:
        """Whether ranks reduce gradients in each micro-batch. ZeRO-2 and ZeRO-3 keep only their part of them."""
        return self.train.accumulate_sync == "each" or sharding in ("zero2", "zero3")

    def reductions(self, batch_per_rank: int, sharding: str) -> int:
        """How often a step reduces each gradient between ranks."""
        return self.micro_batches(batch_per_rank) if self.reduces_each(sharding) else 1

    def defers(self, batch_per_rank: int, sharding: str) -> bool:
        """Whether ranks hold gradients of a micro-batch that they reduce with those of a later one."""
        return self.micro_batches(batch_per_rank) > self.reductions(batch_per_rank, sharding)

    def forbids_sync(self, sharding: str) -> str | None:
        """Why ``train.accumulate_sync`` does not work; None if it does."""
        match self.train.accumulate_sync, sharding:
            case ("last" | "each", _) if self.num_processes == 1:
                reason = "it has one rank, with nobody to reduce gradients with"
            case "last", "zero2" | "zero3":
                reason = "its ranks keep only their part of the gradients, so each micro-batch reduces them"
            case "each", "zero0" | "zero1":
                reason = "DeepSpeed reduces in the last micro-batch alone"
            case _:
                return None
        return f"train.accumulate_sync: {self.train.accumulate_sync} does not work with {self.backend}: {reason}"

    @property
    def accumulates(self) -> bool:
        """Whether a step has several micro-batches, at some batch."""
        return self.train.accumulate > 1 or self.train.global_batch is not None

    @property
    def ranks_per_node(self) -> int:
        return self.num_processes // self.num_nodes

    @property
    def in_bf16(self) -> bool:
        """Whether it computes in bf16."""
        return self.mixed_precision == "bf16"

    @property
    def computes_in(self) -> str:
        """The dtype, by torch's name."""
        return COMPUTES_IN.get(self.mixed_precision or "", "float32")

    @property
    def in_16_bits(self) -> bool:
        return self.computes_in != "float32"

    @property
    def chooses_weights(self) -> bool:
        """Whether ``train.weights`` applies."""
        of_bench = self.accelerate is None and self.script is None
        return self.in_bf16 and of_bench and self.backend in HOLD_WHOLE_WEIGHTS

    @property
    def idle(self) -> set[str]:
        """The settings of ``train`` that do not apply."""
        applies = {
            "weights": self.chooses_weights,
            "accumulate": self.train.global_batch is None,
            "accumulate_sync": self.accumulates,
        }
        return {name for name, does in applies.items() if not does}

    @property
    def train_settings(self) -> dict[str, JsonValue]:
        """``train`` without what does not apply, and what a script has an option for."""
        optional = set() if self.script is None else {"accumulate"}
        return self.train.model_dump(mode="json", exclude=self.idle | optional)

    def without_idle(self) -> Self:
        """With the defaults of settings that do not apply: cells that would do the same are one."""
        defaults = {name: Train.model_fields[name].default for name in self.idle}
        return self.model_copy(update={"train": self.train.model_copy(update=defaults)})

    @property
    def id(self) -> str:
        """Ten hex digits of the content's hash."""
        content = self.model_dump(mode="json")
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    @property
    def slug(self) -> str:
        """The cell's folder name."""
        return f"{self.backend}-{self.id}"


class Regime(Frozen):
    """What really ran, observed in the process. `bench.backends.expected_regime` says what was requested, in the same
    fields."""

    world_size: AtLeastOne
    ranks_per_node: AtLeastOne
    """Ranks that were started on the node of this rank; ``world_size`` if there is one node."""
    distributed_type: str
    """accelerate's name: NO, MULTI_CPU, MULTI_GPU, FSDP, DEEPSPEED."""
    sharding: str
    """none, NO_SHARD, FULL_SHARD, SHARD_GRAD_OP, fully_shard, zero1, zero2, zero3."""
    parameters: AtLeastOne
    """Scalars in the whole model."""
    trained_parameters: Count
    """Scalars of the parameters that require a gradient."""
    gradient_parameters: Count
    """Scalars for which backward makes gradients: the trained ones. Under FSDP1, all of each flat parameter that holds
    one of these: its views require gradients together."""
    trained_on_rank: Count | None = None
    """Of the trained scalars, those that this rank holds. FSDP1 may cut flat parameters so that it holds none. null: in
    a plan."""
    sharded_parameters: Count
    """Scalars in parameters of which this rank holds only a part."""
    weights_dtype: str
    """Dtype of the trained weights; of all, if none is trained."""
    frozen_dtype: str | None = None
    """Dtype of the weights that are not trained, as the workload left them or the backend cast them; null: there are
    none."""
    masters_dtype: str | None
    """Dtype of the weights that the optimizer updates; null without an optimizer."""
    optimizer_dtype: str | None
    """Dtype of Adam's moments."""
    reduction_dtype: str | None
    """Dtype in which gradients are communicated, from the collectives of a step; null with one rank."""
    mesh: dict[str, AtLeastOne] | None = None
    """fsdp2: the sizes of its mesh's dimensions by name. null: no mesh."""
    reshard_after_forward: bool | int | None = None
    """fsdp2: as the units do it; null elsewhere, and if the model is one unit."""
    offload: Offload | None = None
    """What FSDP or DeepSpeed keeps on the host; null elsewhere."""
    overlap_comm: bool | None = None
    """Whether DeepSpeed reduces gradients while backward runs; null elsewhere."""
    matmul_shares: dict[str, Share] | None = None
    """FLOPs of matrix products, convolutions and attention in one warm-up step: the share of each dtype, the largest
    first. null: not observed, as under torch.compile, or there were none."""
    float32_products: str | None = None
    """``tf32`` or ``bf16`` where torch may compute float32 matrix products in that; null: in float32, or there were
    none."""
    attention_kernels: tuple[str, ...] | None = None
    """The kernels that torch's `scaled_dot_product_attention` chose in that step, such as ``flash``; ``with a
    mask`` if it had one. null: not observed, or there were none."""
    adam: str | None = None
    """How torch's Adam stepped then: ``fused``, ``foreach`` or ``loop``. null: not observed, or another optimizer."""

    @property
    def matmul_dtype(self) -> str | None:
        """The dtype of most FLOPs of matrix products; None where it was not observed."""
        return max(self.matmul_shares, key=self.matmul_shares.__getitem__) if self.matmul_shares else None

    @property
    def replicas(self) -> int:
        """Groups of ranks that each hold the whole model, sharded among them."""
        return (self.mesh or {}).get("dp_replicate", 1)

    @model_validator(mode="after")
    def _parts_of_the_whole(self) -> Self:
        if self.sharded_parameters > self.parameters:
            raise ValueError(f"{self.sharded_parameters} of {self.parameters} parameters are sharded")
        trained, with_gradient = self.trained_parameters, self.gradient_parameters
        if not trained <= with_gradient <= self.parameters:
            raise ValueError(
                f"{trained} of {self.parameters} parameters are trained, and {with_gradient} get gradients"
            )
        return self


class Attempt(Frozen):
    """One cell at one batch, measured in fresh processes."""

    cell: Cell
    batch_per_rank: Annotated[int, Field(ge=1)]
    short: bool = False
    """Only a few steps: enough to see whether the batch fits, and roughly how fast it is."""
    launch: Annotated[int, Field(ge=1)] = 1
    """Which of the repeated launches of this cell at this batch. A short attempt has only one."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.short and self.launch > 1:
            raise ValueError(f"launch {self.launch} of a short attempt, which is launched once")
        if not self.cell.divides(self.batch_per_rank):
            raise ValueError(
                f"batch {self.batch_per_rank} does not divide the global batch {self.cell.train.global_batch}"
            )
        return self

    @property
    def batch_global(self) -> int:
        """Samples of one optimizer step."""
        return self.cell.samples_per_step(self.batch_per_rank)

    def samples_of_rank(self, steps: int) -> int:
        """Of so many optimizer steps."""
        return steps * self.cell.rank_samples_per_step(self.batch_per_rank)

    @property
    def options(self) -> Settings:
        """The cell's; of a script, also how many batches make a step, where that follows from the batch."""
        names = self.cell.script.step_placeholders if self.cell.script else ()
        return {**dict.fromkeys(names, self.cell.micro_batches(self.batch_per_rank)), **self.cell.options}

    @property
    def measure(self) -> Measure:
        """The cell's `Measure`, with fewer steps for a short attempt."""
        if not self.short:
            return self.cell.measure
        return self.cell.measure.model_copy(
            update={"warmup_steps": 1, "warmup_s": 0.0, "steps": 3, "phase_steps": 0, "checkpoint": False}
        )

    @property
    def slug(self) -> str:
        """The attempt's folder in the run's ``attempts/``."""
        again = f"-launch{self.launch}" if self.launch > 1 else ""
        return f"{self.cell.slug}/b{self.batch_per_rank}{'-short' if self.short else ''}{again}"


class Walk(Frozen):
    """A scouting attempt: one cell at growing batches in one process, a step or two each. Its results are hints."""

    cell: Cell
    batches_per_rank: tuple[int, ...]

    @property
    def trained(self) -> Cell:
        """The cell with at most two micro-batches in a step: more hold no more memory."""
        several = min(2, self.cell.micro_batches(self.batches_per_rank[0]))
        train = self.cell.train.model_copy(update={"global_batch": None, "accumulate": several})
        return self.cell.model_copy(update={"train": train})

    @property
    def slug(self) -> str:
        return f"{self.cell.slug}/walk"


AuditKind = Literal["collectives", "dataloader", "params", "profile"]


class Audit(Frozen):
    """A check of one property of a cell, in fresh processes. It does not measure steps."""

    cell: Cell
    kind: AuditKind
    batch_per_rank: Annotated[int, Field(ge=1)]
    steps: Annotated[int, Field(ge=1)]
    """Steps, or batches, to check."""

    @property
    def slug(self) -> str:
        if self.kind == "profile":  # of each batch, to compare
            return f"{self.cell.slug}/profile-b{self.batch_per_rank}"
        return f"{self.cell.slug}/audit-{self.kind}"
