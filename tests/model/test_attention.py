"""The attention functions: in which dtypes they compute."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bench.model.attention import eager


class Dtypes(TorchDispatchMode):
    """Records the dtype that each operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, list[torch.dtype]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.seen.setdefault(func.overloadpacket.__name__, []).append(result.dtype)
        return result


@pytest.mark.parametrize(("device", "scores"), [("meta", torch.bfloat16), ("cpu", torch.float32)])
def test_eager_multiplies_in_bf16_away_from_a_cpu_and_has_its_softmax_in_fp32(device: str, scores: torch.dtype) -> None:
    q_BNQH = torch.ones(2, 4, 6, 8, dtype=torch.bfloat16, device=device)
    mask_BQK = torch.ones(2, 6, 6, dtype=torch.bool, device=device)
    with Dtypes() as dtypes:
        out_BNQH = eager(q_BNQH, q_BNQH, q_BNQH, mask_BQK, 0.0)
    assert dtypes.seen["bmm"] == [scores, torch.bfloat16]
    assert dtypes.seen["_softmax"] == [torch.float32]
    assert (out_BNQH.dtype, out_BNQH.shape) == (torch.bfloat16, q_BNQH.shape)
