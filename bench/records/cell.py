"""What is measured: cells, attempts and audits. An id hashes the content, so it survives a reordered matrix file."""

import hashlib
import json
import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, JsonValue, WithJsonSchema, model_validator

from bench.records.base import AtLeastOne, Count, Finite, Frozen, Settings, Share
from bench.records.script import Script

MixedPrecision = Literal["bf16", "no"]
Offload = Literal["none", "optimizer", "params"]
Weights = Literal["fp32", "bf16"]
Compile = Literal["none", "unit", "model"]

_OPTIMIZER = r"^(adamw|muon|none|[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*)$"


def _optimizer(name: str) -> str:
    if not re.fullmatch(_OPTIMIZER, name):
        raise ValueError("choose adamw, muon, none, or your own as package.module:Class")
    return name


Optimizer = Annotated[str, AfterValidator(_optimizer), WithJsonSchema({"type": "string", "pattern": _OPTIMIZER})]


class Measure(Frozen):
    """How a step is measured. Unless the user gives them, the matrix loader uses fewer steps on a CPU, and two workers
    of the loader on CUDA."""

    warmup_steps: Annotated[int, Field(ge=1)] = 20
    """Steps before the measurement. At least one, because the first step allocates the optimizer's state."""
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
    checkpoint: bool = False
    """After the steps, save a checkpoint and load it again: the time of both, the bytes, and whether training goes on
    with the same losses."""
    count_tensors: bool = False
    """On a CPU, count tensors in two more steps, after all that is measured: about 3 s. A GPU always does."""


class Train(Frozen):
    """Settings of the training step that do not depend on the workload."""

    optimizer: Optimizer = "adamw"
    """``adamw``; ``muon``: torch's Muon for the matrices of hidden layers and AdamW for the rest; ``none``: forward and
    backward only; or your own, as ``package.module:Class``."""
    weights: Weights = "fp32"
    """single and ddp in bf16: ``fp32``, autocast over fp32 weights, which the optimizer updates, as accelerate does;
    or ``bf16``, without autocast, with ``master_weights``. Other backends hold weights in their own way: their cells
    keep the default."""
    master_weights: bool = True
    """Keep fp32 copies of bf16 weights for the optimizer to update. Without them, Adam's moments are bf16 too: a
    control, not a way to train. FSDP and DeepSpeed always keep their own."""
    fused: bool | None = None
    """AdamW's fused implementation on or off. null: on for a GPU, unless `foreach` is set or state is offloaded;
    elsewhere torch chooses. Off, and without `foreach`: the plain loop."""
    foreach: bool | None = None
    """AdamW's foreach implementation on or off; null: see `fused`."""
    learning_rate: Annotated[Finite, Field(ge=0)] = 1e-4
    weight_decay: Annotated[Finite, Field(ge=0)] = 0.01
    max_grad_norm: Annotated[Finite, Field(gt=0)] | None = 1.0
    """Gradients are clipped to this global norm. null: they are not clipped."""
    find_unused_parameters: bool = False
    """Let DDP look for parameters that the loss does not depend on. Walks the graph every step."""
    compile: Compile = "none"
    """torch.compile each ``unit`` of the model, or the whole ``model``."""
    reshard_after_forward: bool | Annotated[int, Field(ge=2)] | None = None
    """fsdp2: free the gathered weights of a unit after its forward, and gather them again for its backward. A number
    spreads them over that many ranks instead. null: the backend's default, true."""
    dp_replicate_size: Annotated[int, Field(ge=1)] = 1
    """fsdp2: the number of groups of ranks that each shard a whole model: hybrid sharding."""
    offload: Offload = "none"
    """Keep the optimizer's state and its step on the host, or the weights too."""
    zero_overlap_comm: bool | None = None
    """ZeRO: reduce gradients on a stream of their own while backward runs. null: DeepSpeed's default, true for ZeRO-3
    and false for ZeRO-1 and ZeRO-2."""
    cpu_affinity: bool = False
    """Bind each rank to the cores of its GPU's NUMA node, as accelerate's ``enable_cpu_affinity`` does."""
    allow_unused: bool = False
    """Accept rows of which more than a tenth of the trained parameters get no gradient, or of all parameters are in
    modules that do not run. Without it, such rows are invalid: see *Rows to doubt*."""

    @model_validator(mode="after")
    def _one_implementation(self) -> Self:
        if self.fused and self.foreach:
            raise ValueError("fused and foreach are two implementations of AdamW: choose one")
        return self


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
    """bf16 or no. Of imported figures whatever their source says, such as fp8; null where it says nothing."""
    gradient_accumulation_steps: AtLeastOne = 1
    """Batches of a rank whose gradients add up to one optimizer step: of a script, or of imported figures."""
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

    def global_batch(self, batch_per_rank: int) -> int:
        """Samples of one optimizer step."""
        return batch_per_rank * self.num_processes * self.gradient_accumulation_steps

    @property
    def ranks_per_node(self) -> int:
        return self.num_processes // self.num_nodes

    @property
    def chooses_weights(self) -> bool:
        """Whether ``train.weights`` applies."""
        bf16 = self.mixed_precision == "bf16" and self.accelerate is None and self.script is None
        return bf16 and self.backend in HOLD_WHOLE_WEIGHTS

    @property
    def train_settings(self) -> dict[str, JsonValue]:
        """``train`` without what does not apply."""
        return self.train.model_dump(mode="json", exclude=set() if self.chooses_weights else {"weights"})

    @property
    def id(self) -> str:
        """Ten hex digits of the content's hash."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), allow_nan=False)
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
    def _short_once(self) -> Self:
        if self.short and self.launch > 1:
            raise ValueError(f"launch {self.launch} of a short attempt, which is launched once")
        return self

    @property
    def batch_global(self) -> int:
        """Samples of one optimizer step."""
        return self.cell.global_batch(self.batch_per_rank)

    @property
    def measure(self) -> Measure:
        """The cell's `Measure`, with fewer steps for a short attempt."""
        if not self.short:
            return self.cell.measure
        return self.cell.measure.model_copy(
            update={"warmup_steps": 1, "steps": 3, "phase_steps": 0, "checkpoint": False}
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
    def slug(self) -> str:
        return f"{self.cell.slug}/walk"


AuditKind = Literal["collectives", "dataloader", "params"]


class Audit(Frozen):
    """A check of one property of a cell, in fresh processes. It does not measure steps."""

    cell: Cell
    kind: AuditKind
    batch_per_rank: Annotated[int, Field(ge=1)]
    steps: Annotated[int, Field(ge=1)]
    """Steps, or batches, to check."""

    @property
    def slug(self) -> str:
        return f"{self.cell.slug}/audit-{self.kind}"
