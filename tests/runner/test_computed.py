"""What is seen of a watched step: FLOPs by dtype, forward and backward, and nothing left behind."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from bench.observe.products import _KERNELS, _masked
from bench.runner.computed import watching
from bench.runner.steps import Batch

BATCH, WIDE, NARROW = 4, 8, 2
PRODUCT = 2 * BATCH * WIDE * NARROW
"""FLOPs of the layer's forward, and of its backward: only the weight has a gradient."""


def batches(dtype: torch.dtype = torch.float32) -> Iterator[Batch]:
    assert _get_current_dispatch_mode() is None  # a loader's workers would inherit it
    while True:
        yield {"x": torch.ones(BATCH, WIDE, dtype=dtype)}


def layer(dtype: torch.dtype = torch.float32) -> nn.Module:
    return nn.Linear(WIDE, NARROW, bias=False, dtype=dtype)


def train(model: nn.Module, batch: Batch) -> None:
    model(batch["x"]).float().sum().backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_one_step_is_watched_forward_and_backward(dtype: torch.dtype, micro_batches: int) -> None:
    model = layer(dtype)
    with watching(batches(dtype)) as (watched, computed):
        for _ in range(micro_batches):
            train(model, next(watched))
    assert _get_current_dispatch_mode() is None
    assert computed.flops == {str(dtype).removeprefix("torch."): 2 * micro_batches * PRODUCT}
    train(model, next(watched))
    assert sum(computed.flops.values()) == 2 * micro_batches * PRODUCT


def test_the_dtype_of_most_flops_comes_first_and_shares_add_up() -> None:
    models = nn.ModuleList([layer(torch.bfloat16), layer(torch.bfloat16), layer()])
    with watching(batches()) as (watched, computed):
        x = next(watched)["x"]
        for model in models:
            train(model, {"x": x.to(next(model.parameters()).dtype)})
    assert computed.matmul_shares == {"bfloat16": pytest.approx(2 / 3), "float32": pytest.approx(1 / 3)}
    assert list(computed.matmul_shares) == ["bfloat16", "float32"]
    assert computed.reduction_dtype is None


def test_products_of_the_optimizer_do_not_count() -> None:
    """Muon's are bf16 whatever the model computes in."""
    model = layer()
    optimizer = torch.optim.Muon(model.parameters())
    with watching(batches()) as (watched, computed):
        train(model, next(watched))
        optimizer.step()
        train(model, {"x": torch.ones(BATCH, WIDE)})  # what follows counts again
    assert computed.flops == {"float32": 4 * PRODUCT}


def test_a_step_without_products_has_no_shares() -> None:
    with watching(batches()) as (watched, computed):
        next(watched)["x"].exp().sum()
    assert computed.matmul_shares is None


class Attend(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDE, WIDE)
        self.convolution = nn.Conv1d(BATCH, BATCH, 1)

    def forward(self, x: Tensor) -> Tensor:
        q = self.inner(x)[None, None]
        attended = nn.functional.scaled_dot_product_attention(q, q, q)[0]
        return self.convolution(attended + checkpoint(self.inner, x, use_reentrant=False))


def test_the_count_is_that_of_torch_with_attention_convolution_and_checkpointing() -> None:
    """torch's own count lacks the CPU's attention kernel: there, the attention runs as plain products."""
    model = Attend()
    with watching(batches()) as (watched, computed):
        train(model, next(watched))
    batch = next(batches())
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        train(model, batch)
    again = 2 * BATCH * BATCH * WIDE  # the kernel's backward computes the scores once more
    assert sum(computed.flops.values()) == counter.get_total_flops() + again


@pytest.mark.parametrize(
    ("kernel", "masked", "said"),
    [
        (SDPBackend.FLASH_ATTENTION, False, "flash"),
        (SDPBackend.FLASH_ATTENTION, True, "flash with a mask"),
        (SDPBackend.MATH, False, "math"),
        (SDPBackend.MATH, True, "math"),
    ],
)
def test_the_kernel_of_attention_is_named(kernel: SDPBackend, masked: bool, said: str) -> None:
    q_BNSH = torch.ones(2, 2, 4, 8, requires_grad=True)
    mask_SS = torch.ones(4, 4, dtype=torch.bool) if masked else None
    with watching(batches()) as (watched, computed), sdpa_kernel(kernel):
        next(watched)
        for _ in range(3):
            functional.scaled_dot_product_attention(q_BNSH, q_BNSH, q_BNSH, attn_mask=mask_SS).sum().backward()
    assert computed.attention == {said: 3}


def test_attention_that_is_not_torch_s_has_no_kernel() -> None:
    scores_SS = torch.ones(4, 4, requires_grad=True)
    with watching(batches()) as (watched, computed):
        next(watched)
        (scores_SS.softmax(-1) @ scores_SS).sum().backward()
    assert computed.attention == {}


def test_what_a_model_compiles_itself_stays_compiled() -> None:
    @torch.compile(backend="eager")
    def scores(q_BNSH: Tensor) -> tuple[Tensor, bool]:
        return q_BNSH @ q_BNSH.mT, torch.compiler.is_compiling()

    q_BNSH = torch.ones(2, 2, 16, 4)
    with watching(batches()) as (watched, computed):
        next(watched)
        _, compiled = scores(q_BNSH)
    assert compiled
    assert computed.flops == {"float32": 2 * 2 * (2 * 16 * 16 * 4)}


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_a_higher_order_operator_runs_while_watched() -> None:
    q_BNSH = torch.randn(1, 2, 16, 4)
    with watching(batches()) as (watched, _):
        next(watched)
        attended = flex_attention(q_BNSH, q_BNSH, q_BNSH)
    torch.testing.assert_close(attended, functional.scaled_dot_product_attention(q_BNSH, q_BNSH, q_BNSH))


@pytest.mark.parametrize("name", [name for name in _KERNELS if "cpu" not in name and name != "_safe_softmax"])
def test_the_mask_of_a_kernel_for_gpus_is_found(name: str) -> None:
    kernel, x = getattr(torch.ops.aten, name).default, torch.ones(1)
    assert not _masked(kernel, (x, x, x, None, True) if "flash" not in name else (x, x, x, 0.0), {})
    assert _masked(kernel, (x, x, x, x, True), {}) is ("flash" not in name)


@pytest.mark.parametrize(
    ("settings", "adam"), [({"fused": True}, {"fused": 1}), ({"foreach": True}, {"foreach": 1}), ({}, {"loop": 1})]
)
def test_the_implementation_of_adam_is_seen(settings: dict[str, bool], adam: dict[str, int]) -> None:
    model = layer()
    optimizer = torch.optim.AdamW(model.parameters(), **settings)
    with watching(batches()) as (watched, computed):
        train(model, next(watched))
        torch.zeros(1).addcdiv_(torch.ones(1), torch.ones(1))  # not the optimizer's
        optimizer.step()
    assert computed.adam == adam
