"""What model state takes in theory, beside the measured peak; and how much of the peak rate a step uses. Pure.

Model FLOPs utilization (MFU) counts the operations that the step needs, hardware FLOPs utilization (HFU) also those
that gradient checkpointing repeats (Chowdhery et al. 2022, PaLM, arXiv:2204.02311, section 4.1 and appendix B;
Korthikanti et al. 2022, arXiv:2205.05198, section 6.3).
"""

from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from bench.records.cell import Regime
from bench.records.devices import peak_rate
from bench.records.figures import PADDING, PEAK_ALLOCATED, TOKENS
from bench.records.rank_outcome import Work
from bench.report.formulas import FROZEN_BYTES, ITEM_BYTES, State, StepFormulas
from bench.report.rows import CellRows, Row


def _like_best(cell: CellRows, regime: Regime | None) -> list[Row]:
    """The sampled rows that hold as much state as the best one."""
    rows = [row for row in cell.rows if row.sampled]
    if cell.best is None or regime is None:
        return rows
    held = _state(cell.best, cell, regime)
    return [row for row in rows if _state(row, cell, regime) == held]


def _state(row: Row, cell: CellRows, regime: Regime) -> State:
    return StepFormulas(cell.cell, row.batch_per_rank, regime).state()


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
    best = next(iter(_like_best(cell, regime)), None)
    works = (row.sampled.slowest.raw.work for row in cell.rows if row.sampled)
    work = next((work for work in works if work is not None), None)
    return Theory(
        cell=cell,
        regime=regime,
        state=_state(best, cell, regime) if regime and best and _describes(cell, regime) else None,
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
