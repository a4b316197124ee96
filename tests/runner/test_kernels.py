"""The meta device in the place of another: what tensors say, and what fused kernels keep."""

from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from bench.records.devices import prefers_cudnn
from bench.runner.kernels import Kernels
from bench.runner.program import Live


def kept_bytes(device: str, query: torch.Tensor, *, cudnn: bool = False, **keywords: object) -> int:
    """What attention holds after its forward."""
    live = Live(device, [query])
    with Kernels(device, cudnn=cudnn), live:
        out = functional.scaled_dot_product_attention(query, query, query, **keywords)
        assert out.shape == query.shape
        return live.live


@pytest.fixture
def query() -> torch.Tensor:
    """Batch 2, 4 heads, 256 queries of width 64."""
    return torch.empty(2, 4, 256, 64, dtype=torch.bfloat16, device="meta", requires_grad=True)


def test_tensors_say_that_they_are_on_the_device() -> None:
    x = torch.empty(2, device="meta")
    with Kernels("cuda"):
        assert x.device.type == "cuda"
        assert torch.zeros(2, device=x.device).is_meta
        assert x.to("cuda").is_meta
    assert x.device.type == "meta"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_fused_attention_keeps_its_output_and_a_number_a_query(device: str, query: torch.Tensor) -> None:
    output, sums = query.numel() * 2, 2 * 4 * 256 * 4
    assert output + sums <= kept_bytes(device, query) <= output + sums + 2048  # and the state of random numbers


def test_a_mask_of_booleans_becomes_one_of_numbers(query: torch.Tensor) -> None:
    mask = torch.ones(2, 1, 256, 256, dtype=torch.bool, device="meta")
    for device in ("cpu", "cuda"):
        more = kept_bytes(device, query, attn_mask=mask) - kept_bytes(device, query)
        assert more == pytest.approx(2 * 256 * 256 * 2, rel=0.05)


class Names(TorchDispatchMode):
    """The attention kernels that run."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if "attention" in name and "backward" not in name:
            self.seen.append(name.removeprefix("_scaled_dot_product_").removesuffix("_attention"))
        return func(*args, **(kwargs or {}))


def kernel(query: torch.Tensor, *, cudnn: bool = True, **keywords: Any) -> str:
    names = Names()
    with Kernels("cuda", cudnn=cudnn), names:
        functional.scaled_dot_product_attention(query, query, query, **keywords).sum().backward()
    return names.seen[0]


@pytest.mark.parametrize(
    ("changes", "hopper", "ampere"),
    [
        ({}, "cudnn", "flash"),
        ({"masked": True}, "cudnn", "efficient"),
        ({"dropout_p": 0.1}, "cudnn", "flash"),
        ({"width": 128}, "cudnn", "flash"),
        ({"width": 136}, "flash", "flash"),  # wider than what every version of cuDNN takes
        ({"width": 60}, "flash", "flash"),
        ({"width": 136, "masked": True}, "efficient", "efficient"),
        ({"dtype": torch.float32}, "efficient", "efficient"),
        ({"queries": 1}, "flash", "flash"),
    ],
)
def test_the_kernel_is_the_one_that_torch_takes_on_the_gpu(changes: dict[str, Any], hopper: str, ampere: str) -> None:
    """cuda/sdp_utils.cpp, `can_use_cudnn_attention` and its kin."""
    shape = (2, 4, changes.pop("queries", 64), changes.pop("width", 64))
    query = torch.empty(shape, dtype=changes.pop("dtype", torch.bfloat16), device="meta", requires_grad=True)
    if changes.pop("masked", False):
        changes["attn_mask"] = torch.ones(2, 1, 64, 64, dtype=torch.bool, device="meta")
    assert kernel(query, cudnn=True, **changes) == hopper
    assert kernel(query, cudnn=False, **changes) == ampere


def test_cudnn_keeps_its_output_and_a_number_a_query(query: torch.Tensor) -> None:
    output, sums = query.numel() * 2, 2 * 4 * 256 * 4
    assert output + sums <= kept_bytes("cuda", query, cudnn=True) <= output + sums + 2048


def test_cudnn_pads_no_mask(query: torch.Tensor) -> None:
    """The memory-efficient kernel wants rows of 16: of 250 keys, it keeps a padded copy of the mask."""
    short = query[:, :, :250]
    mask = torch.ones(2, 1, 250, 250, dtype=torch.bfloat16, device="meta")
    padded, plain = (kept_bytes("cuda", short, cudnn=cudnn, attn_mask=mask) for cudnn in (False, True))
    assert padded - plain == pytest.approx(2 * 250 * 256 * 2, abs=4096)


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("NVIDIA H100 80GB HBM3", True),
        ("NVIDIA H200", True),
        ("NVIDIA GH200 480GB", True),
        ("NVIDIA H20", True),
        ("NVIDIA B200", True),
        ("H200-NVL", True),
        ("NVIDIA A100-SXM4-80GB", False),
        ("NVIDIA B300 SXM6 AC", False),  # 10.3
        ("NVIDIA L40S", False),
        ("NVIDIA GeForce RTX 5090", False),
        ("Tesla V100-SXM2-32GB", False),
        (None, False),
    ],
)
def test_the_gpus_on_which_cudnn_is_the_first(name: str | None, first: bool) -> None:
    assert prefers_cudnn(name) is first


def test_attention_with_dropout_is_not_fused_on_a_cpu(query: torch.Tensor) -> None:
    scores = 2 * 4 * 256 * 256 * 2
    assert kept_bytes("cpu", query, dropout_p=0.1) > scores > kept_bytes("cuda", query, dropout_p=0.1)


def test_the_norm_of_a_gpu_keeps_one_number_a_row() -> None:
    x = torch.empty(64, 512, device="meta", requires_grad=True)
    weight = torch.empty(512, device="meta", requires_grad=True)
    kept = {}
    for device in ("cpu", "cuda"):
        live = Live(device, [x, weight])
        with Kernels(device), live:
            out = functional.rms_norm(x, (512,), weight, 1e-6)
            kept[device] = live.live
            assert out.requires_grad
    assert kept["cuda"] == 64 * 512 * 4 + 512  # the output, and a block of the allocator
    assert kept["cpu"] > kept["cuda"]


def test_a_question_about_values_is_counted() -> None:
    kernels = Kernels("cpu")
    with kernels:
        assert torch.ones(3, dtype=torch.bool, device="meta").all()
    assert kernels.assumed == 1
