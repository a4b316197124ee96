"""Every mode that bench pushes, over FlexAttention, plain and compiled: none may refuse a higher-order operator."""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.flex_attention import flex_attention

from bench.observe.products import Computed, Products
from bench.runner.first_forward import FirstForward
from bench.runner.kernels import Kernels
from bench.runner.program import Live
from bench.workloads.huggingface.flops import _Unknown

ROOT = Path(__file__).parents[2]
MODES: dict[str, Callable[[Tensor], AbstractContextManager[object]]] = {
    "Products": lambda _: Products(Computed()),
    "FirstForward": lambda _: FirstForward(nn.Identity()),
    "Live": lambda x: Live("cpu", [x]),
    "_Unknown": lambda _: _Unknown(),
}
"""Dispatch modes, and a function mode. `Kernels` is for the meta device alone, on which nothing is compiled."""


def test_no_mode_is_left_out() -> None:
    classes = {
        name
        for file in (ROOT / "bench").rglob("*.py")
        for name in re.findall(r"^class (\w+)\(Torch(?:Dispatch|Function)Mode\)", file.read_text(), re.MULTILINE)
    }
    assert classes == {*MODES, Kernels.__name__}


@pytest.fixture(scope="module")
def compiled() -> Callable[..., Tensor]:
    function: Callable[..., Tensor] = torch.compile(flex_attention, backend="eager")
    return function


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("compiles", [True, False], ids=["compiled", "plain"])
@pytest.mark.parametrize("mode", MODES)
def test_flex_attention_runs_under(mode: str, compiles: bool, compiled: Callable[..., Tensor]) -> None:
    q_BNSH = torch.randn(1, 2, 128, 16)
    attend = compiled if compiles else flex_attention
    with MODES[mode](q_BNSH):
        attended = attend(q_BNSH, q_BNSH, q_BNSH)
    torch.testing.assert_close(attended, functional.scaled_dot_product_attention(q_BNSH, q_BNSH, q_BNSH))
