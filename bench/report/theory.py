"""What arithmetic says a step must cost, beside what was measured. Pure.

Memory of model state and volume of communication after Rajbhandari et al. 2020, ZeRO (arXiv:1910.02054), sections 3 and
7; the parts of mixed precision after Micikevicius et al. 2018, Mixed Precision Training (arXiv:1710.03740); gathering
and freeing of units after Zhao et al. 2023, PyTorch FSDP (arXiv:2304.11277); recomputation after Chen et al. 2016
(arXiv:1604.06174).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bench.records.cell import Regime
from bench.report.rows import CellRows, Sampled, Summary
from bench.report.tables.attempts import Table, cell_name
from bench.units import UNKNOWN, percent, size

ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
FORWARD_PASSES = {"pi05": 2, "pi07": 2}
"""How often one forward pass of a workload runs through its units; once unless it stands here."""


@dataclass(frozen=True, kw_only=True)
class State:
    """Bytes of model state on one rank, all through a step."""

    weights: float
    gradients: float
    masters: float
    """Beside the weights; 0 where the weights are the masters."""
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

    FSDP's fp32 shards are the masters, and reduced gradients are brought back to their precision (arXiv:2304.11277,
    "Native Mixed Precision"); SHARD_GRAD_OP shards the same and only keeps units gathered for longer. What a step
    holds for a while is not here: gathered units, buckets, gradients on their way to fp32, activations.
    """
    n, parameters = regime.world_size, regime.parameters
    kind = regime.sharding
    whole = kind in ("none", "NO_SHARD", "zero0")
    weight = ITEM_BYTES[regime.weights_dtype]
    # DeepSpeed keeps masters of its own even of fp32 weights.
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

    Counted in profiles of torch's FSDP on two ranks, with and without recomputation, which needs no more: it meets the
    unit that the backward pass has gathered. FULL_SHARD gathers for each forward and keeps a unit gathered from its
    first backward to its last; fully_shard gathers for each of both; SHARD_GRAD_OP gathers once. ZeRO-3 is taken like
    fully_shard, which is the most: DeepSpeed does not let go of a unit that is needed again within
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
        computed_in_bytes: of one weight as it is gathered.
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
    """A measured peak without what grows with the batch, in bytes, and the batches it is taken from."""

    allocated: float
    batches: tuple[int, ...]


def without_batch(cell: CellRows) -> Peak | None:
    """The peak allocated extrapolated to batch 0 on the line through the two smallest batches; with one, its own.

    None where nothing was measured, or the larger batch took less.
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
    if slope < 0:  # noise: what is left would exceed what was ever measured
        return None
    return Peak(low - slope * small, tuple(batch for batch, _ in points))


def table(summary: Summary) -> Table:
    """One line a cell: predicted state, what was measured, the rest; what is sent, what is computed again."""
    parts = ("weights", "gradients", "masters", "Adam", "predicted", "measured", "rest", "sent a step", "recomputed")
    rows = [(cell_name(summary, cell.rows[0]), *_values(cell)) for cell in summary.cells]
    cpu = any(machine.hardware.device == "cpu" for machine in summary.machines)
    return Table(
        title="Theory and measurement",
        headers=("cell", "parameters", *parts, "from batch"),
        rows=tuple(rows) if any(row[1] != UNKNOWN for row in rows) else (),
        numeric=frozenset(("parameters", *parts)),
        notes=(
            "weights to predicted: bytes of model state on each rank by arXiv:1910.02054, if all is trained. measured:"
            " peak allocated without what grows with the batch, on the line through two batches; with one, all of it."
            " rest: what a step holds for a while: gathered units, buckets, fp32 gradients in the optimizer's step."
            + (" On a CPU measured is growth of the data segment, with whatever libraries add." if cpu else ""),
            "sent a step: by each rank, with ring algorithms; for zero3, and for your own"
            " FSDP 2 config that does not reshard after forward, at most. recomputed: part of all arithmetic.",
        ),
    )


def _values(cell: CellRows) -> Sequence[str]:
    regime = _regime(cell)
    recomputed = cell.cell.options.get("grad_ckpt")
    again = percent(recomputed_share(recomputed)) if isinstance(recomputed, bool) else UNKNOWN
    if regime is None:
        return (*[UNKNOWN] * 9, again, UNKNOWN)
    held, peak = state(regime), without_batch(cell)
    computed_in = 2 if cell.cell.mixed_precision == "bf16" else 4
    sent = sent_bytes(regime, FORWARD_PASSES.get(cell.cell.workload, 1), computed_in_bytes=computed_in)
    return (
        f"{regime.parameters:,}",
        *(size(part) for part in (held.weights, held.gradients, held.masters, held.moments, held.total)),
        *((size(peak.allocated), size(peak.allocated - held.total)) if peak else (UNKNOWN, UNKNOWN)),
        size(sent),
        again,
        " and ".join(map(str, peak.batches)) if peak else UNKNOWN,
    )


def _regime(cell: CellRows) -> Regime | None:
    """As observed; None where bench measured nothing, or in dtypes that no formula here has."""
    found = next((row.measured.slowest.regime for row in cell.rows if isinstance(row.measured, Sampled)), None)
    if found is None:
        return None
    dtypes = (found.weights_dtype, found.masters_dtype, found.optimizer_dtype, found.reduction_dtype)
    return found if all(dtype is None or dtype in ITEM_BYTES for dtype in dtypes) else None
