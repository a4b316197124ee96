"""What model state takes in theory, beside the measured peak; and how much of the peak rate a step uses. Pure.

Memory of model state after Rajbhandari et al. 2020, ZeRO (arXiv:1910.02054), section 3; the parts of mixed precision
after Micikevicius et al. 2018, Mixed Precision Training (arXiv:1710.03740); DDP's buckets after Li et al. 2020, PyTorch
Distributed (arXiv:2006.15704).

Model FLOPs utilization (MFU) counts the operations that the step needs, hardware FLOPs utilization (HFU) also those
that gradient checkpointing repeats (Chowdhery et al. 2022, PaLM, arXiv:2204.02311, section 4.1 and appendix B;
Korthikanti et al. 2022, arXiv:2205.05198, section 6.3).
"""

from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from bench.records.cell import Regime
from bench.records.devices import peak_rate
from bench.records.dtypes import DTYPES
from bench.records.figures import PADDING, PEAK_ALLOCATED, TOKENS
from bench.records.precision import COMPUTES_IN
from bench.records.rank_outcome import Work
from bench.report.rows import CellRows, Row

ITEM_BYTES = {dtype.name: dtype.item_bytes for dtype in DTYPES.values() if dtype.name in COMPUTES_IN.values()}
FROZEN_BYTES = {**ITEM_BYTES, "int8": 1, "uint8": 1}
"""Frozen weights may be quantized."""


@dataclass(frozen=True, kw_only=True)
class State:
    """Bytes of model state on one rank, throughout a step with AdamW or without an optimizer."""

    weights: float
    trained_weights: float
    """Of these."""
    gradients: float
    buckets: float
    """DDP's copy of the gradients that it all-reduces."""
    masters: float
    """Copies of the weights for the optimizer; 0 where it steps the weights themselves."""
    moments: float
    """Adam's two."""

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.buckets + self.masters + self.moments

    @property
    def stepped(self) -> float:
        """What the optimizer updates with the moments: masters, or the trained weights themselves."""
        return self.masters or self.trained_weights


def state(regime: Regime, *, whole_gradient_bytes: int | None = None) -> State:
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
    parameters wherever the ranks' equal parts end; of the trained ones, the rank holds what it was seen to hold. DDP's
    buckets last as long as the model and hold one more copy of all gradients: accelerate leaves
    `gradient_as_bucket_view` off (docs of DistributedDataParallel). Not included is memory that a step holds for a
    short time: gathered units, ZeRO's buckets, gradients while they are cast to fp32, the bf16 copies that autocast
    makes of weights, activations.

    With hybrid sharding, n is the number of ranks that share one model.

    Args:
        whole_gradient_bytes: `held_back_bytes`: then FSDP1 holds 2G or 4G in the place of shards, and FSDP2 4T.
    """
    n, kind = regime.world_size // regime.replicas, regime.sharding
    whole, zero = kind in ("none", "NO_SHARD", "zero0"), kind.startswith("zero")
    weight = ITEM_BYTES[regime.weights_dtype]
    frozen = FROZEN_BYTES[regime.frozen_dtype or regime.weights_dtype]
    # DeepSpeed keeps separate masters even for fp32 weights.
    own_masters = regime.masters_dtype is not None and (zero or regime.masters_dtype != regime.weights_dtype)
    here = None if zero or whole else regime.trained_on_rank
    stepped = here if here is not None else regime.trained_parameters / (1 if whole else n)
    gradients = weight * regime.gradient_parameters / (1 if whole or kind == "zero1" else n)
    if whole_gradient_bytes is not None:
        gradients = float(whole_gradient_bytes * regime.gradient_parameters)
    shares, trained = 1 if whole or kind in ("zero1", "zero2") else n, weight * regime.trained_parameters
    return State(
        weights=(trained + frozen * (regime.parameters - regime.trained_parameters)) / shares,
        trained_weights=trained / shares,
        gradients=gradients,
        buckets=gradients if kind == "none" and n > 1 else 0.0,
        masters=ITEM_BYTES[regime.masters_dtype] * stepped if own_masters and regime.masters_dtype else 0.0,
        moments=2 * ITEM_BYTES[regime.optimizer_dtype] * stepped if regime.optimizer_dtype else 0.0,
    )


def held_back_bytes(cell: CellRows, regime: Regime) -> int | None:
    """Bytes of each gradient that FSDP holds unreduced up to the last of several micro-batches, whatever the number of
    ranks: FSDP1 as backward makes them, FSDP2 in the dtype of the reduction, fp32. None where it holds shards."""
    if regime.world_size == 1 or not any(_defers(cell, row, regime) for row in _like_best(cell, regime)):
        return None
    match regime.sharding:
        case "FULL_SHARD" | "SHARD_GRAD_OP":
            return 2 if cell.cell.in_16_bits else 4
        case "fully_shard":
            return ITEM_BYTES[regime.reduction_dtype or regime.weights_dtype]
    return None


def _defers(cell: CellRows, row: Row, regime: Regime) -> bool:
    return cell.cell.defers(row.batch_per_rank, regime.sharding)


def _like_best(cell: CellRows, regime: Regime | None) -> list[Row]:
    """The sampled rows that hold as much state as the best one: with a global batch, some may take several
    micro-batches and others one."""
    rows = [row for row in cell.rows if row.sampled]
    best = cell.best
    if best is None or regime is None:
        return rows
    return [row for row in rows if _defers(cell, row, regime) == _defers(cell, best, regime)]


class Peak(NamedTuple):
    """A measured peak without the part that grows with the batch, in bytes, and the batches that it comes from."""

    allocated: float
    batches: tuple[int, ...]


def without_batch(cell: CellRows) -> Peak | None:
    """The peak allocated, extrapolated to batch 0 through the two smallest batches that hold as much state as the best
    one; with one batch, its own peak.

    None where nothing was measured, or where noise gives a result above every measured peak or below zero.
    """
    points = [
        (row.batch_per_rank, peak)
        for row in _like_best(cell, observed_regime(cell))
        if row.sampled and (peak := row.sampled.of(PEAK_ALLOCATED)) is not None
    ][:2]
    if not points:
        return None
    (small, low), (large, high) = points[0], points[-1]
    slope = (high - low) / (large - small) if large > small else 0.0
    allocated = low - slope * small
    return Peak(allocated, tuple(batch for batch, _ in points)) if 0 <= allocated <= low else None


@dataclass(frozen=True, kw_only=True)
class Theory:
    """The prediction for one cell, with the measured peak."""

    cell: CellRows
    regime: Regime | None
    """See `observed_regime`."""
    state: State | None
    """None without a regime, where a part of it is on the host, and for other optimizers than AdamW."""
    peak: Peak | None
    recomputed_share: float | None
    """Share of the step's operations that is done a second time; None where the workload does not state it."""

    @property
    def rest_bytes(self) -> float | None:
        """What was measured beyond the predicted state."""
        return self.peak.allocated - self.state.total if self.peak and self.state else None


def theory_of(cell: CellRows) -> Theory:
    """The prediction for one cell."""
    regime = observed_regime(cell)
    works = (row.sampled.slowest.raw.work for row in cell.rows if row.sampled)
    work = next((work for work in works if work is not None), None)
    return Theory(
        cell=cell,
        regime=regime,
        state=state(regime, whole_gradient_bytes=held_back_bytes(cell, regime))
        if regime and _describes(cell, regime)
        else None,
        peak=without_batch(cell) if regime else None,
        recomputed_share=recomputed_share(work) if work else None,
    )


def _describes(cell: CellRows, regime: Regime) -> bool:
    """Whether `state` describes what a rank holds on its device."""
    seen = [rank.raw.observed for row in cell.rows for rank in row.ranks]
    names = [name for each in seen if each for name in each.optimizer.split(", ")]
    adam = all(name.endswith(("Adam", "AdamW")) for name in names)
    return regime.offload in (None, "none") and adam and cell.cell.train.optimizer in ("adamw", "none")


def observed_regime(cell: CellRows) -> Regime | None:
    """The regime that ran, of the rank that holds most of what is trained.

    None where bench measured nothing, or where the size of a dtype is not known.
    """
    ranks = next((row.ranks for row in cell.rows if row.ranks), ())
    regime = max((rank.raw.regime for rank in ranks), key=lambda regime: regime.trained_on_rank or 0, default=None)
    if regime is None:
        return None
    dtypes = (regime.weights_dtype, regime.masters_dtype, regime.optimizer_dtype, regime.reduction_dtype)
    known = all(dtype is None or dtype in ITEM_BYTES for dtype in dtypes)
    return regime if known and (regime.frozen_dtype or regime.weights_dtype) in FROZEN_BYTES else None


@dataclass(frozen=True, kw_only=True)
class Utilization:
    """What one row does with its devices. None is unknown: the workload or the device does not say."""

    row: Row
    model_flops_per_s_per_rank: float | None
    """Without recomputation."""
    hardware_flops_per_s_per_rank: float | None
    peak_flops_per_s: float | None
    """Of one device: see bench/records/devices.py."""
    tokens_per_s_global: float | None
    """Without padding."""
    padding_share: float | None

    @property
    def mfu(self) -> float | None:
        return _share(self.model_flops_per_s_per_rank, self.peak_flops_per_s)

    @property
    def hfu(self) -> float | None:
        return _share(self.hardware_flops_per_s_per_rank, self.peak_flops_per_s)


def utilization(cell: CellRows, row: Row) -> Utilization | None:
    """Of one row; None if the workload states neither operations nor tokens, or nothing was measured."""
    if row.sampled is None:
        return None
    works, tokens = [rank.raw.work for rank in row.ranks], row.sampled.of(TOKENS)
    work = works[0] or Work()
    if work.step_flops is None and tokens is None:
        return None
    per_rank = row.rate / row.world_size
    hardware = None if work.step_flops is None else fmean(each.step_flops or 0 for each in works if each)
    needed = hardware and hardware - fmean(each.recomputed_flops or 0 for each in works if each)
    device = row.accelerators[0] if len(set(row.accelerators)) == 1 else None
    in_tf32 = cell.cell.mixed_precision == "no" and row.ranks[0].raw.regime.float32_products
    return Utilization(
        row=row,
        model_flops_per_s_per_rank=None if needed is None else per_rank * needed,
        hardware_flops_per_s_per_rank=None if hardware is None else per_rank * hardware,
        peak_flops_per_s=None if device is None or in_tf32 else peak_rate(device, cell.cell.mixed_precision),
        tokens_per_s_global=None if tokens is None else row.rate * tokens,
        padding_share=row.sampled.of(PADDING),
    )


def recomputed_share(work: Work) -> float | None:
    """Share of the step's operations that gradient checkpointing repeats; None where the workload states none."""
    if work.step_flops is None or work.recomputed_flops is None:
        return None
    return work.recomputed_flops / work.step_flops


def _share(rate: float | None, peak: float | None) -> float | None:
    return None if rate is None or peak is None else rate / peak
