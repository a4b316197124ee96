"""Memory of a rank outside torch's tensors. An allowance and no measurement of the machine at hand. Pure."""

from bench.backends.registry import Family, backend_of
from bench.records.base import Device
from bench.records.cell import Cell

MIB = 2**20
CUDA_CONTEXT = 700 * MIB
"""The driver's context with the kernels of torch, cuBLAS and cuDNN."""
NCCL = 900 * MIB
"""Buffers and channels of NCCL in a process group over NVLink, and the kernels that it loads."""
DATA_SEGMENT: dict[Family, int] = {
    "single": 125 * MIB,
    "ddp": 125 * MIB,
    "fsdp": 125 * MIB,
    "fsdp2": 165 * MIB,
    "deepspeed": 145 * MIB,
}
"""On a CPU: by how much modules, threads and oneDNN's code let the data segment grow."""


def allowance_bytes(cell: Cell, device: Device) -> int:
    """What a rank of ``cell`` needs beside its tensors."""
    if device == "cpu":
        return DATA_SEGMENT[backend_of(cell).family]
    return CUDA_CONTEXT + (NCCL if cell.num_processes > 1 else 0)
