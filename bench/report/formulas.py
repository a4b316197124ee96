"""What a rank of each sharding holds throughout a step and sends in it, in closed form. Pure.

Memory of model state after Rajbhandari et al. 2020, ZeRO (arXiv:1910.02054), section 3; the parts of mixed precision
after Micikevicius et al. 2018, Mixed Precision Training (arXiv:1710.03740); DDP's buckets after Li et al. 2020, PyTorch
Distributed (arXiv:2006.15704).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from bench.records.cell import Cell, Regime
from bench.records.dtypes import DTYPES
from bench.records.precision import COMPUTES_IN

ITEM_BYTES = {dtype.name: dtype.item_bytes for dtype in DTYPES.values() if dtype.name in COMPUTES_IN.values()}
FROZEN_BYTES = {**ITEM_BYTES, "int8": 1, "uint8": 1}
"""Frozen weights may be quantized."""
REUSE_DISTANCE = 1_000_000_000
"""DeepSpeed's default for `stage3_max_reuse_distance`, in parameters."""
RING = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0, "broadcast": 1.0, "reduce": 1.0}
"""By operation: what n ranks send, each on average, as a multiple of (n-1)/n of the payload. An all-reduce is a
reduce-scatter and an all-gather (arXiv:1910.02054, section 7.1)."""


@dataclass(frozen=True, kw_only=True)
class State:
    """Bytes of model state on one rank, throughout a step with AdamW or without an optimizer."""

    weights: float
    trained_weights: float
    """Of these."""
    gradients: float
    reduced: float
    """Gradients by which the optimizer steps."""
    buckets: float
    """DDP's copy of the gradients that it all-reduces."""
    masters: float
    """Copies of the weights for the optimizer; 0 where it steps the weights themselves."""
    moments: float
    """Adam's two."""
    notes: tuple[str, ...] = ()
    """Sentences on where gradients are not as in the table of `StepFormulas.state`."""

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.buckets + self.masters + self.moments

    @property
    def updated(self) -> float:
        """What the optimizer reads and writes."""
        return self.stepped + self.moments + self.reduced

    @property
    def stepped(self) -> float:
        """What the optimizer updates with the moments: masters, or the trained weights themselves."""
        return self.masters or self.trained_weights


def gathered(
    sharding: str,
    parameters: int,
    units: Mapping[int, int],
    *,
    again: Mapping[int, int] | None = None,
    reshards: bool = True,
) -> int:
    """Parameters that one step gathers, each as often as it is gathered.

    Counted by torch's flight recorder on two ranks, with torch 2.13, accelerate 1.15 and DeepSpeed 0.19. What backward
    recomputes is not gathered for it: backward has gathered the unit.

    - FULL_SHARD gathers a unit for each of its forwards, and once for backward, which keeps it to its last use. What is
      in no unit stays gathered after forward (arXiv:2304.11277; torch/distributed/fsdp/_runtime_utils.py,
      `_post_forward_reshard`).
    - SHARD_GRAD_OP gathers everything once.
    - fully_shard, if it reshards after forward, gathers a unit for each of its forwards and again for each backward of
      these, else everything once. What is in no unit stays gathered after forward: accelerate leaves the root to torch,
      which keeps it (accelerate/utils/fsdp_utils.py, `fsdp2_prepare_model`). That function also makes the embedding of
      a model with `get_input_embeddings` a unit.
    - ZeRO-3 keeps a parameter that is needed again within `stage3_max_reuse_distance` parameters, and those of up to
      `stage3_param_persistence_threshold` for the whole step (deepspeed/runtime/zero/partitioned_param_coordinator.py,
      `__params_to_release`). If the whole step passes fewer, it gathers once; otherwise this is an upper bound, one
      gather for each forward and each backward.

    Args:
        parameters: of the whole model.
        units: parameters of its units by how often a step runs their forward.
        again: parameters of its units by how often FSDP gathers them for backward, which ends before what is frozen
            and comes first. By default, for each forward.
        reshards: whether fully_shard frees the weights of a unit after its forward.
    """
    used = {runs: number for runs, number in units.items() if runs}
    back = used if again is None else {runs: number for runs, number in again.items() if runs}
    rest = parameters - sum(units.values())
    everything = rest + sum(used.values())
    for_each_run = rest + sum(runs * number for runs, number in used.items())
    match sharding:
        case "FULL_SHARD" | "HYBRID_SHARD":
            return for_each_run + sum(back.values())
        case "fully_shard" if reshards:
            return for_each_run + sum(runs * number for runs, number in back.items())
        case "zero3":
            return everything if 2 * for_each_run <= REUSE_DISTANCE else 2 * for_each_run
    return everything


def sent_bytes(operation: str, payload: float, ranks: int) -> float | None:
    """What each rank sends with ring algorithms, on average; None for an operation that is not in `RING`."""
    return RING[operation] * payload * (ranks - 1) / ranks if operation in RING else None


def computed_in_bytes(cell: Cell) -> int | None:
    """Size of a weight as the step computes with it; None where the user's own config may say something else."""
    if cell.accelerate is not None:
        return None
    return 2 if cell.in_16_bits else 4


@dataclass(frozen=True)
class StepFormulas:
    """A step of ``cell`` at ``batch`` samples per rank, in the regime that it has."""

    cell: Cell
    batch: int
    regime: Regime
    units: Mapping[int, int] | None = None
    again: Mapping[int, int] | None = None
    """See `gathered`."""

    def state(self) -> State:
        """Model state on one rank, for P parameters on n ranks, of which T are trained.

        With bf16 weights and fp32 masters, in bytes (arXiv:1910.02054, section 3.1 and figure 1, there with T = P and
        K = 12):

        ============== ========= ========= ======= ========= ========
        sharding       weights   gradients buckets masters   moments
        ============== ========= ========= ======= ========= ========
        none           2P        2T        2T      4T        8T
        none, autocast 4P        4T        4T      0         8T
        zero1          2P        2T        0       4T/n      8T/n
        zero2          2P        2T/n      0       4T/n      8T/n
        zero3          2P/n      2T/n      0       4T/n      8T/n
        FSDP1          4P/n      4G/n      0       0         8T/n
        FSDP2          4P/n      4T/n      0       0         8T/n
        ============== ========= ========= ======= ========= ========

        FSDP's fp32 shards are the masters, and reduced gradients are cast back to their precision (arXiv:2304.11277,
        "Native Mixed Precision"); SHARD_GRAD_OP shards the same and only keeps units gathered for longer. G are the
        parameters of the flat ones that hold a trained one: FSDP1 keeps a gradient of all of these. It also cuts flat
        parameters wherever the ranks' equal parts end; of the trained ones, the rank holds what it was seen to hold.
        DDP's buckets last as long as the model and hold one more copy of all gradients: accelerate leaves
        `gradient_as_bucket_view` off (docs of DistributedDataParallel). Not included is memory that a step holds for a
        short time: gathered units, ZeRO's buckets, gradients while they are cast to fp32, the bf16 copies that autocast
        makes of weights, activations.

        With hybrid sharding, n is the number of ranks that share one model. Where gradients are reduced in the last
        of several micro-batches alone, FSDP holds whole ones up to it, whatever n is: FSDP1 2G or 4G as backward makes
        them, FSDP2 those in the dtype of the reduction, 4T.
        """
        regime = self.regime
        n, kind = regime.world_size // regime.replicas, regime.sharding
        whole, zero = kind in ("none", "NO_SHARD", "zero0"), kind.startswith("zero")
        weight = ITEM_BYTES[regime.weights_dtype]
        frozen = FROZEN_BYTES[regime.frozen_dtype or regime.weights_dtype]
        # DeepSpeed keeps separate masters even for fp32 weights.
        own_masters = regime.masters_dtype is not None and (zero or regime.masters_dtype != regime.weights_dtype)
        here = None if zero or whole else regime.trained_on_rank
        stepped = here if here is not None else regime.trained_parameters / (1 if whole else n)
        reduced = gradients = weight * regime.gradient_parameters / (1 if whole or kind == "zero1" else n)
        notes = list[str]()
        if regime.gradient_parameters > regime.trained_parameters:
            notes.append("Under FSDP1, all parameters of a unit have gradients if one is trained.")
        if not (whole or zero) and regime.world_size > 1 and self.cell.defers(self.batch, kind):
            made = regime.reduction_dtype if kind == "fully_shard" else self.cell.computes_in
            gradients = float(ITEM_BYTES[made or regime.weights_dtype] * regime.gradient_parameters)
            notes.append("Where FSDP reduces in the last micro-batch alone, it holds whole gradients.")
        shares, trained = 1 if whole or kind in ("zero1", "zero2") else n, weight * regime.trained_parameters
        return State(
            weights=(trained + frozen * (regime.parameters - regime.trained_parameters)) / shares,
            trained_weights=trained / shares,
            gradients=gradients,
            reduced=reduced,
            buckets=gradients if kind == "none" and n > 1 else 0.0,
            masters=ITEM_BYTES[regime.masters_dtype] * stepped if own_masters and regime.masters_dtype else 0.0,
            moments=2 * ITEM_BYTES[regime.optimizer_dtype] * stepped if regime.optimizer_dtype else 0.0,
            notes=tuple(notes),
        )

    def payload(self) -> dict[str, float] | None:
        """Payload of one step by operation. None where it takes units and has none, and under the user's own accelerate
        config.

        Where nothing is sharded, gradients are all-reduced. ZeRO-1 and ZeRO-2 could reduce-scatter them
        (arXiv:1910.02054, section 7.2.1), but DeepSpeed 0.19 all-reduces them and each rank keeps its part
        (deepspeed/runtime/zero/stage_1_and_2.py, `allreduce_and_scatter`); then it gathers the stepped weights. A
        sharded model reduce-scatters its gradients and gathers its weights (section 7.2.2), see `gathered`: those that
        are frozen, too.

        On a hybrid mesh, the ranks that share one model do so among themselves, and then each all-reduces its part of
        the gradients with those that hold the same part of other replicas (torch/distributed/fsdp/_fully_shard,
        `foreach_reduce`).

        There is no formula for weights that are resharded to smaller groups, nor for sharded weights of several dtypes.

        FSDP and ZeRO-3 gather weights for each micro-batch; SHARD_GRAD_OP keeps them up to the last one, unless
        gradients are reduced in each (torch/distributed/fsdp/_runtime_utils.py, `_should_free_in_backward`).
        """
        regime, width = self.regime, computed_in_bytes(self.cell)
        if regime.world_size == 1 or width is None:
            return None if width is None else {}
        kind, reductions = regime.sharding, self.cell.reductions(self.batch, regime.sharding)
        reduced = reductions * float(
            ITEM_BYTES[regime.reduction_dtype or regime.weights_dtype] * regime.gradient_parameters
        )
        if kind in ("none", "NO_SHARD", "zero0"):
            return {"all_reduce": reduced}
        if kind in ("zero1", "zero2"):
            stepped = float(ITEM_BYTES[regime.weights_dtype] * regime.trained_parameters)
            return {"all_reduce": reduced, "all_gather": stepped}
        if (weights := self._gathered(reductions)) is None:
            return None
        within = {"reduce_scatter": reduced, "all_gather": float(width * weights)}
        if regime.replicas == 1:
            return within
        return within | {"all_reduce": reduced / (regime.world_size // regime.replicas)}

    def _gathered(self, reductions: int) -> int | None:
        """Parameters that a step gathers, each as often as it is gathered; None where that is not known."""
        regime, runs = self.regime, self.cell.micro_batches(self.batch)
        reshards, mixed = regime.reshard_after_forward, regime.frozen_dtype not in (None, regime.weights_dtype)
        if self.units is None or reshards not in (None, True, False) or mixed:
            return None
        if regime.sharding == "fully_shard" and runs > reductions and any(times > 1 for times in self.units):
            return None  # what earlier micro-batches left may be reduced after one run, and the rest after another
        once = gathered(
            regime.sharding, regime.parameters, self.units, again=self.again, reshards=reshards is not False
        )
        return once * (reductions if regime.sharding == "SHARD_GRAD_OP" else runs)

    def gathers_at_most(self) -> bool:
        """Whether the payload has an upper bound of the gathered weights."""
        if self.regime.sharding != "zero3":
            return False
        bound = gathered("zero3", self.regime.parameters, self.units or {}) > self.regime.parameters
        return bound or self.cell.micro_batches(self.batch) > 1

    def sent(self, *, gloo: bool) -> dict[str, float] | None:
        """What each rank sends in one step in bytes by the operation that runs; None without a payload.

        Args:
            gloo: it has no reduce-scatter: torch runs an all-reduce for it.
        """
        regime, payload = self.regime, self.payload()
        if payload is None:
            return None
        shards = regime.world_size // regime.replicas
        found = dict[str, float]()
        for operation, size in payload.items():
            ranks = regime.replicas if operation == "all_reduce" and regime.replicas > 1 else shards
            if ranks == 1:
                continue
            runs = "all_reduce" if gloo and operation == "reduce_scatter" else operation
            found[runs] = found.get(runs, 0.0) + (sent_bytes(runs, size, ranks) or 0.0)
        return found

    def amount(self, each: tuple[float, float]) -> float:
        """Of a whole step, what one forward and backward of a batch take ``each``: at batch 0, and for each sample."""
        return self.cell.micro_batches(self.batch) * (each[0] + each[1] * self.batch)
