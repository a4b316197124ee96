"""How much of a device's peak rate the training step uses. Pure.

Model FLOPs utilization (MFU) counts the operations that the step needs, hardware FLOPs utilization (HFU) also those
that gradient checkpointing repeats (Chowdhery et al. 2022, PaLM, arXiv:2204.02311, section 4.1 and appendix B;
Korthikanti et al. 2022, arXiv:2205.05198, section 6.3).
"""

from dataclasses import dataclass

from bench.records.devices import peak_rate
from bench.records.rank_outcome import Work
from bench.report.rows import CellRows, Row, Sampled


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
    recomputed_share: float | None
    """Share of the step's operations that is done a second time."""

    @property
    def mfu(self) -> float | None:
        return _share(self.model_flops_per_s_per_rank, self.peak_flops_per_s)

    @property
    def hfu(self) -> float | None:
        return _share(self.hardware_flops_per_s_per_rank, self.peak_flops_per_s)


def utilization(cell: CellRows, row: Row) -> Utilization | None:
    """Of one row; None if the workload states neither operations nor tokens, or nothing was measured."""
    if not isinstance(row.measured, Sampled):
        return None
    work, samples_per_s = row.measured.slowest.raw.work, row.measured.samples_per_s_global
    if work is None:
        return None
    per_rank = samples_per_s / row.world_size
    needed = None if work.step_flops is None else work.step_flops - (work.recomputed_flops or 0)
    device = row.accelerators[0] if len(set(row.accelerators)) == 1 else None
    return Utilization(
        row=row,
        model_flops_per_s_per_rank=None if needed is None else per_rank * needed,
        hardware_flops_per_s_per_rank=None if work.step_flops is None else per_rank * work.step_flops,
        peak_flops_per_s=None if device is None else peak_rate(device, cell.cell.mixed_precision),
        tokens_per_s_global=None if work.tokens_per_sample is None else samples_per_s * work.tokens_per_sample,
        recomputed_share=recomputed_share(work),
    )


def recomputed_share(work: Work) -> float | None:
    """Share of the step's operations that gradient checkpointing repeats; None where the workload states none."""
    if work.step_flops is None or work.recomputed_flops is None:
        return None
    return work.recomputed_flops / work.step_flops


def _share(rate: float | None, peak: float | None) -> float | None:
    return None if rate is None or peak is None else rate / peak
