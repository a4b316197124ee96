"""What the ranks of a step send each other: by formula, and as torch's flight recorder saw it. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.records.cell import Cell, Regime
from bench.records.rank_outcome import Traffic
from bench.report.rows import CellRows, Row
from bench.report.theory import ITEM_BYTES, observed_regime

REUSE_DISTANCE = 1_000_000_000
"""DeepSpeed's default for `stage3_max_reuse_distance`, in parameters."""
RING = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0, "broadcast": 1.0, "reduce": 1.0}
"""By operation: what n ranks send, each on average, as a multiple of (n-1)/n of the payload. An all-reduce is a
reduce-scatter and an all-gather (arXiv:1910.02054, section 7.1)."""
NEGLIGIBLE = 0.01


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


def payload_bytes(
    regime: Regime,
    units: Mapping[int, int] | None,
    *,
    again: Mapping[int, int] | None = None,
    computed_in_bytes: int,
    cell: Cell | None = None,
    batch: int = 1,
) -> dict[str, float] | None:
    """Payload of one step by operation. None where it takes ``units`` and has none.

    Where nothing is sharded, gradients are all-reduced. ZeRO-1 and ZeRO-2 could reduce-scatter them
    (arXiv:1910.02054, section 7.2.1), but DeepSpeed 0.19 all-reduces them and each rank keeps its part
    (deepspeed/runtime/zero/stage_1_and_2.py, `allreduce_and_scatter`); then it gathers the stepped weights. A sharded
    model reduce-scatters its gradients and gathers its weights (section 7.2.2), see `gathered`: those that are frozen,
    too.

    On a hybrid mesh, the ranks that share one model do so among themselves, and then each all-reduces its part of the
    gradients with those that hold the same part of other replicas (torch/distributed/fsdp/_fully_shard,
    `foreach_reduce`).

    There is no formula for weights that are resharded to smaller groups, nor for sharded weights of several dtypes.

    Args:
        units, again: see `gathered`.
        computed_in_bytes: size of one gathered weight.
        cell, batch: whose step it is. FSDP and ZeRO-3 gather weights for each micro-batch; SHARD_GRAD_OP keeps them up
            to the last one, unless gradients are reduced in each (torch/distributed/fsdp/_runtime_utils.py,
            `_should_free_in_backward`).
    """
    if regime.world_size == 1:
        return {}
    kind = regime.sharding
    runs, reductions = (cell.micro_batches(batch), cell.reductions(batch, kind)) if cell else (1, 1)
    gathers = reductions if kind == "SHARD_GRAD_OP" else runs
    reduced = reductions * float(
        ITEM_BYTES[regime.reduction_dtype or regime.weights_dtype] * regime.gradient_parameters
    )
    if kind in ("none", "NO_SHARD", "zero0"):
        return {"all_reduce": reduced}
    if kind in ("zero1", "zero2"):
        return {
            "all_reduce": reduced,
            "all_gather": float(ITEM_BYTES[regime.weights_dtype] * regime.trained_parameters),
        }
    reshards, mixed = regime.reshard_after_forward, regime.frozen_dtype not in (None, regime.weights_dtype)
    if units is None or reshards not in (None, True, False) or mixed:
        return None
    if kind == "fully_shard" and runs > reductions and any(times > 1 for times in units):
        return None  # what earlier micro-batches left may be reduced after one run, and the rest after another
    weights = gathers * gathered(kind, regime.parameters, units, again=again, reshards=reshards is not False)
    within = {"reduce_scatter": reduced, "all_gather": float(computed_in_bytes * weights)}
    return within if regime.replicas == 1 else within | {"all_reduce": reduced / (regime.world_size // regime.replicas)}


def sent_bytes(operation: str, payload: float, ranks: int) -> float | None:
    """What each rank sends with ring algorithms, on average; None for an operation that is not in `RING`."""
    return RING[operation] * payload * (ranks - 1) / ranks if operation in RING else None


def sent(regime: Regime, payload: Mapping[str, float], *, gloo: bool) -> dict[str, float]:
    """What each rank sends in one step with the payload of `payload_bytes`, in bytes by the operation that runs.

    Args:
        gloo: it has no reduce-scatter: torch runs an all-reduce for it.
    """
    shards = regime.world_size // regime.replicas
    found = dict[str, float]()
    for operation, size in payload.items():
        ranks = regime.replicas if operation == "all_reduce" and regime.replicas > 1 else shards
        if ranks == 1:
            continue
        runs = "all_reduce" if gloo and operation == "reduce_scatter" else operation
        found[runs] = found.get(runs, 0.0) + (sent_bytes(runs, size, ranks) or 0.0)
    return found


@dataclass(frozen=True, kw_only=True)
class Sent:
    """What each rank sends in one step by one operation."""

    row: Row
    """Whose step it is."""
    operation: str
    calls: int | None
    """Recorded; None without a record."""
    recorded_bytes: float | None
    formula_bytes: float | None
    """None where no formula has this operation, or what it needs is unknown."""
    upper_bound: bool
    """Whether the formula is one."""

    @property
    def ratio(self) -> float | None:
        """Recorded over formula."""
        if not self.formula_bytes or self.recorded_bytes is None:
            return None
        return self.recorded_bytes / self.formula_bytes


def communication(cell: CellRows) -> list[Sent]:
    """By operation, of the best batch that was recorded. A recorded operation without formula counts from 1 % of all
    payload."""
    regime = observed_regime(cell)
    if regime is None or regime.world_size == 1:
        return []
    fastest = sorted(cell.full, key=lambda row: row.rate, reverse=True)
    ranks = [(row, row.sampled.slowest.raw) for row in (*fastest, *cell.rows) if row.sampled]
    row, shown = next(((row, rank) for row, rank in ranks if rank.traffic is not None), ranks[0])
    batch, recorded = row.batch_per_rank, shown.traffic
    units, again = next(
        ((rank.unit_parameters, rank.regathered) for _, rank in ranks if rank.unit_parameters is not None),
        (None, None),
    )
    computed_in = computed_in_bytes(cell.cell)
    payload = (
        payload_bytes(regime, units, again=again, computed_in_bytes=computed_in, cell=cell.cell, batch=batch)
        if computed_in
        else None
    )
    gloo = any(one.library == "gloo" for one in recorded or ())
    formula = None if payload is None else sent(regime, payload, gloo=gloo)
    if formula and cell.cell.train.optimizer == "muon":
        formula.pop("all_gather", None)  # Muon gathers the matrices too, and how many scalars they hold is not stored
    between = [one for one in recorded or () if one.group_size > 1]
    total = sum(one.payload_bytes for one in between)
    payloads = Counter[str]()
    for one in between:
        payloads[one.operation] += one.payload_bytes
    operations = {*(formula or {}), *(name for name, payload in payloads.items() if payload >= NEGLIGIBLE * total)}
    bound = regime.sharding == "zero3" and (
        cell.cell.micro_batches(batch) > 1 or gathered("zero3", regime.parameters, units or {}) > regime.parameters
    )
    return [
        Sent(
            row=row,
            operation=operation,
            calls=_calls(recorded, operation),
            recorded_bytes=_recorded(recorded, operation),
            formula_bytes=(formula or {}).get(operation),
            upper_bound=bound and operation == "all_gather",
        )
        for operation in sorted(operations)
    ]


def computed_in_bytes(cell: Cell) -> int | None:
    """Size of a weight as the step computes with it; None where the user's own config may say something else."""
    if cell.accelerate is not None:
        return None
    return 2 if cell.in_16_bits else 4


def _calls(recorded: Sequence[Traffic] | None, operation: str) -> int | None:
    return None if recorded is None else sum(one.calls for one in recorded if one.operation == operation)


def _recorded(recorded: Sequence[Traffic] | None, operation: str) -> float | None:
    """By the size of each group; None for an operation that is not in `RING`."""
    if recorded is None:
        return None
    parts = [sent_bytes(operation, one.payload_bytes, one.group_size) for one in recorded if one.operation == operation]
    return None if None in parts else sum(part for part in parts if part is not None)
