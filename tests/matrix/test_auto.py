"""What `preset: auto` takes, by what the backends of the matrix hold of each parameter."""

from collections.abc import Callable

import pytest

from bench.matrix import Matrix, expand
from bench.records.machine import Hardware

GIB = 2**30


def gpus(devices: int, gib: int) -> Hardware:
    return Hardware(device="cuda", devices=devices, cores=64, memory_bytes=gib * GIB)


@pytest.mark.parametrize(
    ("matrix", "devices", "gib", "preset"),
    [
        ("backend: [fsdp, fsdp_grad_op, zero2]", 8, 79, "pi07"),
        ("backend: [fsdp, fsdp_grad_op, zero2]", 1, 79, "small"),
        ("backend: [fsdp2, zero3]", 8, 23, "pi07"),
        ("backend: zero1", 8, 23, "small"),
        ("backend: [fsdp, ddp]", 8, 79, "small"),  # the same preset for all backends
        ("backend: ddp, weights: bf16", 2, 160, "pi07"),
        ("backend: ddp, weights: [bf16, fp32]", 2, 150, "small"),
        ("backend: ddp, weights: bf16, foreach: [true]", 2, 160, "small"),
        ("backend: single, weights: bf16", 1, 139, "pi07"),
        ("backend: ddp", 2, 139, "pi07"),  # fp32 weights need no masters
        ("backend: ddp", 2, 136, "small"),
        ("backend: single", 1, 112, "pi07"),
        ("backend: single", 1, 109, "small"),
    ],
)
def test_the_largest_preset_that_every_backend_can_hold(
    load_text: Callable[..., Matrix], matrix: str, devices: int, gib: int, preset: str
) -> None:
    text = f"workload: {{name: pi07, preset: auto}}\nmatrix: {{{matrix}, batch: 1}}\n"
    hardware = gpus(devices, gib)
    plans = expand(load_text(text, hardware), hardware)
    assert {plan.cell.options["preset"] for plan in plans} == {preset}
