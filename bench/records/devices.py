"""GPUs as their datasheets describe them: memory, peak rates and links. Plain data, to extend.

Rates are those of dense matrix products; a datasheet that only gives the rate with sparsity counts half. bf16 is the
rate with fp32 accumulation, on tensor cores. fp32 is the rate without TF32, which torch does not use unless a workload
turns it on. A device that is not here has no known peak, and so no MFU: a neighbor's figure would be a guess. A link
counts in one direction: NVLink where the board has it, else PCIe; a datasheet that sums both directions counts half.
"""

import re
from typing import NamedTuple

from bench.records.base import AtLeastOne, Frozen, Positive
from bench.records.precision import COMPUTES_IN
from bench.units import GIB


class Gpu(NamedTuple):
    """One GPU. The units are those of datasheets."""

    name: str
    """Regular expression for all of the name that the driver gives. It leaves out parts of a GPU (MIG)."""
    bf16: float | None
    """TFLOP/s. None for a GPU without bf16 matrix products."""
    fp32: float
    """TFLOP/s."""
    memory: float
    """GiB: what datasheets call GB. Of boards with GDDR6, 15 of 16 parts: the rest holds the codes of ECC."""
    bandwidth: float
    """GB/s to its memory."""
    link: float
    """GB/s to other GPUs, in one direction."""
    source: str
    """A document of NVIDIA."""


GPUS: dict[str, Gpu] = {
    "A100-40GB": Gpu(r"NVIDIA A100-SXM4-40GB", 312, 19.5, 40, 1555, 300, "A100 Tensor Core GPU datasheet, 2021"),
    "A100-80GB": Gpu(r"NVIDIA A100-SXM4-80GB", 312, 19.5, 80, 2039, 300, "A100 Tensor Core GPU datasheet, 2021"),
    "A100-PCIE-40GB": Gpu(r"NVIDIA A100-PCIE-40GB", 312, 19.5, 40, 1555, 300, "A100 Tensor Core GPU datasheet, 2020"),
    "A100-PCIE-80GB": Gpu(r"NVIDIA A100 80GB PCIe", 312, 19.5, 80, 1935, 300, "A100 Tensor Core GPU datasheet, 2021"),
    "H100": Gpu(r"NVIDIA H100 80GB HBM3", 989.5, 67, 80, 3350, 450, "H100 datasheet, H100 SXM: 1,979 with sparsity"),
    "H100-PCIE": Gpu(
        r"NVIDIA H100 PCIe", 756.5, 51, 80, 2000, 300, "H100 datasheet, H100 PCIe, 2023: 1,513 with sparsity"
    ),
    "H100-NVL": Gpu(
        r"NVIDIA H100 NVL", 835.5, 60, 94, 3900, 300, "H100 datasheet, H100 NVL, 2024: 1,671 with sparsity"
    ),
    "H200": Gpu(r"NVIDIA H200", 989.5, 67, 141, 4800, 450, "H200 datasheet, H200 SXM: 1,979 with sparsity"),
    "H200-NVL": Gpu(r"NVIDIA H200 NVL", 835.5, 60, 141, 4800, 450, "H200 datasheet, H200 NVL: 1,671 with sparsity"),
    "B200": Gpu(
        r"NVIDIA B200", 2250, 75, 180, 8000, 900, "Blackwell datasheet, HGX B200, one GPU: 4,500 with sparsity"
    ),
    "L4": Gpu(r"NVIDIA L4", 121, 30.3, 22.5, 300, 32, "L4 datasheet: 242 with sparsity"),
    "L40": Gpu(r"NVIDIA L40", 181.05, 90.5, 45, 864, 32, "L40 datasheet"),
    "L40S": Gpu(r"NVIDIA L40S", 362.05, 91.6, 45, 864, 32, "L40S datasheet"),
    "A10": Gpu(r"NVIDIA A10", 125, 31.2, 22.5, 600, 32, "A10 datasheet"),
    "A30": Gpu(r"NVIDIA A30", 165, 10.3, 24, 933, 100, "A30 datasheet"),
    "A40": Gpu(r"NVIDIA A40", 149.7, 37.4, 45, 696, 56.25, "A40 datasheet"),
    "V100-16GB": Gpu(r"Tesla V100-SXM2-16GB(-LS)?", None, 15.7, 16, 900, 150, "V100 datasheet, V100 for NVLink"),
    "V100-32GB": Gpu(r"Tesla V100-SXM2-32GB(-LS)?", None, 15.7, 32, 900, 150, "V100 datasheet, V100 for NVLink"),
    "V100-PCIE-16GB": Gpu(r"Tesla V100-PCIE-16GB", None, 14, 16, 900, 16, "V100 datasheet, V100 for PCIe"),
    "V100-PCIE-32GB": Gpu(r"Tesla V100-PCIE-32GB", None, 14, 32, 900, 16, "V100 datasheet, V100 for PCIe"),
    "T4": Gpu(r"Tesla T4", None, 8.1, 15, 320, 16, "T4 datasheet"),
    "RTX-3090": Gpu(r"NVIDIA GeForce RTX 3090", 71, 35.6, 24, 936, 56.25, "Ampere GA102 GPU architecture, appendix A"),
    "RTX-4090": Gpu(r"NVIDIA GeForce RTX 4090", 165.2, 82.6, 24, 1008, 32, "Ada GPU architecture, appendix A"),
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
                bf16_flops_per_s=None if gpu.bf16 is None else gpu.bf16 * 1e12,
                fp32_flops_per_s=gpu.fp32 * 1e12,
                bandwidth_bytes_per_s=gpu.bandwidth * 1e9,
                link_bytes_per_s=gpu.link * 1e9,
                source=f"NVIDIA {gpu.source}",
            )
    return None


_PREFERS_CUDNN = re.compile(r"\b(?:G?H(?:100|200|800|20)|G?B(?:100|200))\b")


def prefers_cudnn(name: str | None) -> bool:
    """Whether torch's attention tries cuDNN's kernel first on the GPU called ``name``, by its driver or in short.

    It does on compute capability 9.0 and 10.0, unless TORCH_CUDNN_SDPA_DEPRIORITIZED is set
    (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, `check_prefer_cudnn_attention`).
    """
    return name is not None and _PREFERS_CUDNN.search(name) is not None


def peak_rate(device: str, mixed_precision: str | None) -> float | None:
    """Floating-point operations a second of one ``device``, or None where its peak is not known.

    Args:
        device: the driver's name.
        mixed_precision: all of 16 bits have one rate, where a GPU has them.
    """
    spec, dtype = spec_of(device), COMPUTES_IN.get(mixed_precision or "")
    if spec is None or dtype is None:
        return None
    return spec.fp32_flops_per_s if dtype == "float32" else spec.bf16_flops_per_s
