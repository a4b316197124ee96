"""The meta device in the place of another: what tensors say, and what fused kernels keep."""

import pytest
import torch
from torch.nn import functional

from bench.runner.kernels import Kernels
from bench.runner.program import Live


def kept_bytes(device: str, query: torch.Tensor, **keywords: object) -> int:
    """What attention holds after its forward."""
    live = Live(device, [query])
    with Kernels(device), live:
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
