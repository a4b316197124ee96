"""Fills the device, then has a library make its handle and its plan. Prints a line of JSON: what it raised.

All tensors exist before, so that torch's allocator refuses nothing. On a CPU, a limit takes the place of the device's.
"""

import ctypes
import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench.runner import oom
from bench.runner.device import DEVICE_ADAPTERS, DeviceAdapter

CACHED_BYTES = 512 * 2**20
"""Left in torch's allocator for results, gradients and workspaces."""
LEAST_BYTES = 2**20


def matmul(device: str) -> None:
    left = torch.ones(1024, 1024 * scale(device), device=device, dtype=torch.bfloat16, requires_grad=True)
    (left @ left.T).sum().backward()  # type: ignore[no-untyped-call]


def convolution(device: str) -> None:
    shape = 8 * scale(device), 16, 64, 64
    images = torch.ones(shape, device=device, dtype=torch.bfloat16, requires_grad=True)
    weights = torch.ones(16, 16, 3, 3, device=device, dtype=torch.bfloat16, requires_grad=True)
    functional.conv2d(images, weights).sum().backward()  # type: ignore[no-untyped-call]


def attention(device: str, *backends: SDPBackend) -> None:
    shape = 2 * scale(device), 8, 256, 64
    q = torch.ones(shape, device=device, dtype=torch.bfloat16, requires_grad=True)
    with sdpa_kernel(list(backends) or [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
        functional.scaled_dot_product_attention(q, q, q).sum().backward()  # type: ignore[no-untyped-call]


def cudnn_attention(device: str) -> None:
    attention(device, *[SDPBackend.CUDNN_ATTENTION] * (device == "cuda"))


def solve(device: str) -> None:
    side = 64 * scale(device)
    torch.linalg.solve(torch.eye(side, device=device), torch.ones(side, 1, device=device))


def scale(device: str) -> int:
    """On a CPU, tensors exceed the limit: its libraries have no handles, and oneDNN ends a process without memory."""
    return 1 if device == "cuda" else 128


OPERATIONS: dict[str, Callable[[str], None]] = {
    "matmul": matmul,
    "convolution": convolution,
    "attention": attention,
    "cudnn_attention": cudnn_attention,
    "solve": solve,
}


def fill(adapter: DeviceAdapter) -> None:
    """Take all memory that torch's allocator does not hold, until not a MiB is left."""
    if not torch.cuda.is_available():
        torch.set_num_threads(1)  # OpenMP ends the process where no thread can start
        adapter.limit_memory(128 * 2**20)
        return
    torch.empty(CACHED_BYTES, dtype=torch.uint8, device="cuda")  # freed, and kept by the allocator
    cuda, size, pointer = ctypes.CDLL("libcuda.so.1"), 2**30, ctypes.c_uint64()
    while size >= LEAST_BYTES:
        if cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)):
            size //= 2


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    adapter = DEVICE_ADAPTERS["cuda" if device == "cuda" else "cpu"]()
    fill(adapter)
    told: dict[str, Any] = {"device": device, "error": None, "text": "", "kind": None, "full": None, "free_MiB": None}
    try:
        OPERATIONS[sys.argv[1]](device)
    except Exception as error:
        told["full"] = adapter.is_full()
        adapter.lift_limit()
        evidence = oom.find(error, limited=device == "cpu", full=told["full"])
        told |= {"error": type(error).__name__, "text": str(error)[:4000], "kind": evidence and evidence.kind}
    adapter.lift_limit()
    if device == "cuda":
        told["free_MiB"] = torch.cuda.mem_get_info()[0] // 2**20
    print(json.dumps(told))


if __name__ == "__main__":
    main()
