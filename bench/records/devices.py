"""GPUs as their datasheets describe them: memory, peak rates and links. Plain data, to extend.

Rates are those of dense matrix products; a datasheet that only gives the rate with sparsity counts half. bf16 is the
rate with fp32 accumulation, on tensor cores. fp32 is the rate without TF32, which torch does not use unless a workload
turns it on. A device that is not here has no known peak, and so no MFU: a neighbor's figure would be a guess. A link
counts in one direction: NVLink where the board has it, else PCIe; a datasheet that sums both directions counts half.
"""

import re
from typing import NamedTuple

from bench.records.base import AtLeastOne, Frozen, Positive
from bench.units import GIB


class Gpu(NamedTuple):
    """One GPU."""

    name: str
    """Regular expression for all of the name that the driver gives. It leaves out parts of a GPU (MIG)."""
    bf16: float | None
    """Operations a second. None for a GPU without bf16 matrix products."""
    fp32: float
    memory: float
    """GiB: what datasheets call GB. Of boards with GDDR6, 15 of 16 parts: the rest holds the codes of ECC."""
    bandwidth: float
    """Bytes a second to its memory."""
    link: float
    """Bytes a second to other GPUs, in one direction."""
    source: str


GPUS: dict[str, Gpu] = {
    "A100-40GB": Gpu(
        r"NVIDIA A100-SXM4-40GB", 312e12, 19.5e12, 40, 1555e9, 300e9, "NVIDIA A100 Tensor Core GPU datasheet, 2021"
    ),
    "A100-80GB": Gpu(
        r"NVIDIA A100-SXM4-80GB", 312e12, 19.5e12, 80, 2039e9, 300e9, "NVIDIA A100 Tensor Core GPU datasheet, 2021"
    ),
    "A100-PCIE-40GB": Gpu(
        r"NVIDIA A100-PCIE-40GB", 312e12, 19.5e12, 40, 1555e9, 300e9, "NVIDIA A100 Tensor Core GPU datasheet, 2020"
    ),
    "A100-PCIE-80GB": Gpu(
        r"NVIDIA A100 80GB PCIe", 312e12, 19.5e12, 80, 1935e9, 300e9, "NVIDIA A100 Tensor Core GPU datasheet, 2021"
    ),
    "H100": Gpu(
        r"NVIDIA H100 80GB HBM3",
        989.5e12,
        67e12,
        80,
        3350e9,
        450e9,
        "NVIDIA H100 datasheet, H100 SXM: 1,979 with sparsity",
    ),
    "H100-PCIE": Gpu(
        r"NVIDIA H100 PCIe",
        756.5e12,
        51e12,
        80,
        2000e9,
        300e9,
        "NVIDIA H100 datasheet, H100 PCIe, 2023: 1,513 with sparsity",
    ),
    "H100-NVL": Gpu(
        r"NVIDIA H100 NVL",
        835.5e12,
        60e12,
        94,
        3900e9,
        300e9,
        "NVIDIA H100 datasheet, H100 NVL, 2024: 1,671 with sparsity",
    ),
    "H200": Gpu(
        r"NVIDIA H200",
        989.5e12,
        67e12,
        141,
        4800e9,
        450e9,
        "NVIDIA H200 datasheet, H200 SXM: 1,979 with sparsity",
    ),
    "H200-NVL": Gpu(
        r"NVIDIA H200 NVL",
        835.5e12,
        60e12,
        141,
        4800e9,
        450e9,
        "NVIDIA H200 datasheet, H200 NVL: 1,671 with sparsity",
    ),
    "B200": Gpu(
        r"NVIDIA B200",
        2250e12,
        75e12,
        180,
        8000e9,
        900e9,
        "NVIDIA Blackwell datasheet, HGX B200, one GPU: 4,500 with sparsity",
    ),
    "L4": Gpu(r"NVIDIA L4", 121e12, 30.3e12, 22.5, 300e9, 32e9, "NVIDIA L4 datasheet: 242 with sparsity"),
    "L40": Gpu(r"NVIDIA L40", 181.05e12, 90.5e12, 45, 864e9, 32e9, "NVIDIA L40 datasheet"),
    "L40S": Gpu(r"NVIDIA L40S", 362.05e12, 91.6e12, 45, 864e9, 32e9, "NVIDIA L40S datasheet"),
    "A10": Gpu(r"NVIDIA A10", 125e12, 31.2e12, 22.5, 600e9, 32e9, "NVIDIA A10 datasheet"),
    "A30": Gpu(r"NVIDIA A30", 165e12, 10.3e12, 24, 933e9, 100e9, "NVIDIA A30 datasheet"),
    "A40": Gpu(r"NVIDIA A40", 149.7e12, 37.4e12, 45, 696e9, 56.25e9, "NVIDIA A40 datasheet"),
    "V100-16GB": Gpu(
        r"Tesla V100-SXM2-16GB(-LS)?", None, 15.7e12, 16, 900e9, 150e9, "NVIDIA V100 datasheet, V100 for NVLink"
    ),
    "V100-32GB": Gpu(
        r"Tesla V100-SXM2-32GB(-LS)?", None, 15.7e12, 32, 900e9, 150e9, "NVIDIA V100 datasheet, V100 for NVLink"
    ),
    "V100-PCIE-16GB": Gpu(
        r"Tesla V100-PCIE-16GB", None, 14e12, 16, 900e9, 16e9, "NVIDIA V100 datasheet, V100 for PCIe"
    ),
    "V100-PCIE-32GB": Gpu(
        r"Tesla V100-PCIE-32GB", None, 14e12, 32, 900e9, 16e9, "NVIDIA V100 datasheet, V100 for PCIe"
    ),
    "T4": Gpu(r"Tesla T4", None, 8.1e12, 15, 320e9, 16e9, "NVIDIA T4 datasheet"),
    "RTX-3090": Gpu(
        r"NVIDIA GeForce RTX 3090",
        71e12,
        35.6e12,
        24,
        936e9,
        56.25e9,
        "NVIDIA Ampere GA102 GPU architecture, appendix A",
    ),
    "RTX-4090": Gpu(
        r"NVIDIA GeForce RTX 4090", 165.2e12, 82.6e12, 24, 1008e9, 32e9, "NVIDIA Ada GPU architecture, appendix A"
    ),
}
"""By a short name for people."""


class DeviceSpec(Frozen):
    """A device to plan for, from `GPUS` or from the user's file. null: not known."""

    name: str
    memory_bytes: AtLeastOne
    bf16_flops_per_s: Positive | None = None
    fp32_flops_per_s: Positive | None = None
    bandwidth_bytes_per_s: Positive | None = None
    link_bytes_per_s: Positive | None = None
    """To other devices of the node, in one direction."""
    source: str


def spec_of(name: str) -> DeviceSpec | None:
    """The GPU called ``name``, in short or by its driver; None if it is not in `GPUS`."""
    for short, gpu in GPUS.items():
        if name.lower() == short.lower() or re.fullmatch(gpu.name, name):
            return DeviceSpec(
                name=short,
                memory_bytes=round(gpu.memory * GIB),
                bf16_flops_per_s=gpu.bf16,
                fp32_flops_per_s=gpu.fp32,
                bandwidth_bytes_per_s=gpu.bandwidth,
                link_bytes_per_s=gpu.link,
                source=gpu.source,
            )
    return None


def peak_rate(device: str, mixed_precision: str | None) -> float | None:
    """Floating-point operations a second of one ``device``, or None where its peak is not known.

    Args:
        device: the driver's name.
        mixed_precision: ``bf16``, or ``no`` for fp32.
    """
    for gpu in GPUS.values():
        if re.fullmatch(gpu.name, device):
            return {"bf16": gpu.bf16, "no": gpu.fp32}.get(mixed_precision or "")
    return None
