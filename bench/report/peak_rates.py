"""Peak rates of GPUs: dense matrix products, as their datasheets state them. Plain data, to extend.

A datasheet that only gives the rate with sparsity counts half. bf16 is the rate with fp32 accumulation, on tensor
cores. fp32 is the rate without TF32, which torch does not use unless a workload turns it on. A device that is not here
has no known peak, and so no MFU: a neighbour's figure would be a guess.
"""

import re
from typing import NamedTuple


class PeakRate(NamedTuple):
    """One GPU's peak, in floating-point operations a second."""

    name: str
    """Regular expression for all of the name that the driver gives. It leaves out parts of a GPU (MIG)."""
    bf16: float | None
    """None for a GPU without bf16 matrix products."""
    fp32: float
    source: str


PEAK_RATES = (
    PeakRate(r"NVIDIA A100-SXM4-(40|80)GB", 312e12, 19.5e12, "NVIDIA A100 Tensor Core GPU datasheet, 2021"),
    PeakRate(r"NVIDIA A100-PCIE-40GB", 312e12, 19.5e12, "NVIDIA A100 Tensor Core GPU datasheet, 2020"),
    PeakRate(r"NVIDIA A100 80GB PCIe", 312e12, 19.5e12, "NVIDIA A100 Tensor Core GPU datasheet, 2021"),
    PeakRate(r"NVIDIA H100 80GB HBM3", 989.5e12, 67e12, "NVIDIA H100 datasheet, H100 SXM: 1,979 with sparsity"),
    PeakRate(r"NVIDIA H100 PCIe", 756.5e12, 51e12, "NVIDIA H100 datasheet, H100 PCIe, 2023: 1,513 with sparsity"),
    PeakRate(r"NVIDIA H100 NVL", 835.5e12, 60e12, "NVIDIA H100 datasheet, H100 NVL, 2024: 1,671 with sparsity"),
    PeakRate(r"NVIDIA H200", 989.5e12, 67e12, "NVIDIA H200 datasheet, H200 SXM: 1,979 with sparsity"),
    PeakRate(r"NVIDIA H200 NVL", 835.5e12, 60e12, "NVIDIA H200 datasheet, H200 NVL: 1,671 with sparsity"),
    PeakRate(r"NVIDIA B200", 2250e12, 75e12, "NVIDIA Blackwell datasheet, HGX B200, one GPU: 4,500 with sparsity"),
    PeakRate(r"NVIDIA L4", 121e12, 30.3e12, "NVIDIA L4 datasheet: 242 with sparsity"),
    PeakRate(r"NVIDIA L40", 181.05e12, 90.5e12, "NVIDIA L40 datasheet"),
    PeakRate(r"NVIDIA L40S", 362.05e12, 91.6e12, "NVIDIA L40S datasheet"),
    PeakRate(r"NVIDIA A10", 125e12, 31.2e12, "NVIDIA A10 datasheet"),
    PeakRate(r"NVIDIA A30", 165e12, 10.3e12, "NVIDIA A30 datasheet"),
    PeakRate(r"NVIDIA A40", 149.7e12, 37.4e12, "NVIDIA A40 datasheet"),
    PeakRate(r"Tesla V100-SXM2-(16|32)GB(-LS)?", None, 15.7e12, "NVIDIA V100 datasheet, V100 for NVLink"),
    PeakRate(r"Tesla V100-PCIE-(16|32)GB", None, 14e12, "NVIDIA V100 datasheet, V100 for PCIe"),
    PeakRate(r"Tesla T4", None, 8.1e12, "NVIDIA T4 datasheet"),
    PeakRate(r"NVIDIA GeForce RTX 3090", 71e12, 35.6e12, "NVIDIA Ampere GA102 GPU architecture, appendix A"),
    PeakRate(r"NVIDIA GeForce RTX 4090", 165.2e12, 82.6e12, "NVIDIA Ada GPU architecture, appendix A"),
)


def peak_rate(device: str, mixed_precision: str) -> float | None:
    """Floating-point operations a second of one ``device``, or None where its peak is not known.

    Args:
        device: the driver's name.
        mixed_precision: ``bf16``, or ``no`` for fp32.
    """
    for rates in PEAK_RATES:
        if re.fullmatch(rates.name, device):
            return rates.bf16 if mixed_precision == "bf16" else rates.fp32
    return None
