"""What a step must cost in theory: memory of model state, traffic, recomputation. Pure.

Memory of model state and volume of communication after Rajbhandari et al. 2020, ZeRO (arXiv:1910.02054), sections 3 and
7; the parts of mixed precision after Micikevicius et al. 2018, Mixed Precision Training (arXiv:1710.03740); gathering
and freeing of units after Zhao et al. 2023, PyTorch FSDP (arXiv:2304.11277); recomputation after Chen et al. 2016
(arXiv:1604.06174).
"""

from dataclasses import dataclass
from typing import NamedTuple

from bench.records.cell import Regime
from bench.report.rows import CellRows, Sampled

ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
FORWARD_PASSES = {"pi05": 2, "pi07": 2}
"""How often one forward pass of a workload runs through its units; once for workloads that are not listed."""


@dataclass(frozen=True, kw_only=True)
class State:
    """Bytes of model state on one rank, throughout a step."""

    weights: float
    gradients: float
    masters: float
    """Copies of the weights for the optimizer; 0 where it steps the weights themselves."""
    moments: float
    """Adam's two."""

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.masters + self.moments


def state(regime: Regime) -> State:
    """Model state on one rank, for P parameters on n ranks, all of them trained.

    With bf16 weights and fp32 masters, in bytes (arXiv:1910.02054, section 3.1 and figure 1, there with K = 12):

    ============== ========= ========= ========= ========
    sharding       weights   gradients masters   moments
    ============== ========= ========= ========= ========
    none           2P        2P        4P        8P
    zero1          2P        2P        4P/n      8P/n
    zero2          2P        2P/n      4P/n      8P/n
    zero3          2P/n      2P/n      4P/n      8P/n
    FSDP, any      4P/n      4P/n      0         8P/n
    ============== ========= ========= ========= ========

    FSDP's fp32 shards are the masters, and reduced gradients are cast back to their precision (arXiv:2304.11277,
    "Native Mixed Precision"); SHARD_GRAD_OP shards the same and only keeps units gathered for longer. Not included is
    memory that a step holds for a short time: gathered units, buckets, gradients while they are cast to fp32,
    activations.
    """
    n, parameters = regime.world_size, regime.parameters
    kind = regime.sharding
    whole = kind in ("none", "NO_SHARD", "zero0")
    weight = ITEM_BYTES[regime.weights_dtype]
    # DeepSpeed keeps separate masters even for fp32 weights.
    own_masters = regime.masters_dtype is not None and (
        kind.startswith("zero") or regime.masters_dtype != regime.weights_dtype
    )
    stepped = parameters / (1 if whole else n)
    return State(
        weights=weight * parameters / (1 if whole or kind in ("zero1", "zero2") else n),
        gradients=weight * parameters / (1 if whole or kind == "zero1" else n),
        masters=ITEM_BYTES[regime.masters_dtype] * stepped if own_masters and regime.masters_dtype else 0.0,
        moments=2 * ITEM_BYTES[regime.optimizer_dtype] * stepped if regime.optimizer_dtype else 0.0,
    )


def gathers(sharding: str, passes: int) -> int:
    """How often a step gathers each unit whose forward runs ``passes`` times.

    Counted in profiles of torch's FSDP on two ranks. Recomputation adds none, because the backward pass has already
    gathered the unit. FULL_SHARD gathers for each forward and keeps a unit gathered from its first backward to its
    last; fully_shard gathers for each forward and each backward; SHARD_GRAD_OP gathers once. ZeRO-3 counts like
    fully_shard, which is an upper bound: DeepSpeed keeps a unit that is needed again within
    `stage3_max_reuse_distance`.
    """
    match sharding:
        case "FULL_SHARD" | "HYBRID_SHARD":
            return passes + 1
        case "SHARD_GRAD_OP" | "HYBRID_SHARD_ZERO2":
            return 1
        case "fully_shard" | "zero3":
            return 2 * passes
    return 0


def sent_bytes(regime: Regime, passes: int, *, computed_in_bytes: int) -> float:
    """Bytes that one rank sends in a step.

    By rings: a reduce-scatter or an all-gather of V bytes sends V(n-1)/n, an all-reduce both (arXiv:1910.02054, section
    7.1). Gradients are all-reduced where nothing is sharded; ZeRO-1 and 2 reduce-scatter them and all-gather the
    stepped weights (7.2.1: the same volume); a sharded model reduce-scatters its gradients once and gathers its
    weights `gathers` times (7.2.2 has one forward pass and so two gathers).

    Args:
        computed_in_bytes: size of one gathered weight.
    """
    n, kind = regime.world_size, regime.sharding
    ring = regime.parameters * (n - 1) / n
    reduced = ITEM_BYTES[regime.reduction_dtype or regime.weights_dtype] * ring
    if kind in ("none", "NO_SHARD", "zero0"):
        return 2 * reduced
    if kind in ("zero1", "zero2"):
        return reduced + ITEM_BYTES[regime.weights_dtype] * ring
    return reduced + gathers(kind, passes) * computed_in_bytes * ring


def recomputed_share(grad_ckpt: bool) -> float:
    """Share of a step's arithmetic that is done a second time.

    A backward pass costs twice its forward pass; recomputing all activations costs one more (arXiv:1604.06174): one
    part in four.
    """
    return 0.25 if grad_ckpt else 0.0


class Peak(NamedTuple):
    """A measured peak without the part that grows with the batch, in bytes, and the batches that it comes from."""

    allocated: float
    batches: tuple[int, ...]


def without_batch(cell: CellRows) -> Peak | None:
    """The peak allocated, extrapolated to batch 0 through the two smallest batches; with one batch, its own peak.

    None where nothing was measured, or where the larger batch took less.
    """
    known = [
        (row.batch_per_rank, row.measured.peak_allocated_bytes_rank_max)
        for row in cell.rows
        if isinstance(row.measured, Sampled) and row.measured.peak_allocated_bytes_rank_max is not None
    ]
    points = [(batch, peak) for batch, peak in known if peak is not None][:2]
    if not points:
        return None
    (small, low), (large, high) = points[0], points[-1]
    slope = (high - low) / (large - small) if large > small else 0.0
    if slope < 0:  # noise: the result would exceed every measured peak
        return None
    return Peak(low - slope * small, tuple(batch for batch, _ in points))


@dataclass(frozen=True, kw_only=True)
class Theory:
    """The prediction for one cell, with the measured peak."""

    regime: Regime | None
    """As observed; None where bench measured nothing, or where a dtype is not in `ITEM_BYTES`."""
    state: State | None
    sent_bytes: float | None
    """By each rank in a step."""
    peak: Peak | None
    recomputed_share: float | None
    """None where the cell does not say whether it checkpoints activations."""

    @property
    def rest_bytes(self) -> float | None:
        """What was measured beyond the predicted state."""
        return self.peak.allocated - self.state.total if self.peak and self.state else None


def theory_of(cell: CellRows) -> Theory:
    """The prediction for one cell."""
    regime, checkpointed = _regime(cell), cell.cell.options.get("grad_ckpt")
    computed_in = 2 if cell.cell.mixed_precision == "bf16" else 4
    passes = FORWARD_PASSES.get(cell.cell.workload, 1)
    return Theory(
        regime=regime,
        state=state(regime) if regime else None,
        sent_bytes=sent_bytes(regime, passes, computed_in_bytes=computed_in) if regime else None,
        peak=without_batch(cell) if regime else None,
        recomputed_share=recomputed_share(checkpointed) if isinstance(checkpointed, bool) else None,
    )


def _regime(cell: CellRows) -> Regime | None:
    regime = next((row.measured.slowest.regime for row in cell.rows if isinstance(row.measured, Sampled)), None)
    if regime is None:
        return None
    dtypes = (regime.weights_dtype, regime.masters_dtype, regime.optimizer_dtype, regime.reduction_dtype)
    return regime if all(dtype is None or dtype in ITEM_BYTES for dtype in dtypes) else None
