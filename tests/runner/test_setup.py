"""What is checked before a model is handed to a sharding library."""

import pytest
import torch
from torch import nn

from bench.backends import Family
from bench.errors import InputError
from bench.runner.setup import check_layout


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (torch.ones(()), "the parameter odd: it has no dimension"),
        (torch.ones(16, 8).t(), "the parameter odd: it is not contiguous, with the shape (8, 16)"),
        (
            torch.ones(4, 3, 2, 2).to(memory_format=torch.channels_last),
            "is not contiguous, with the shape (4, 3, 2, 2)",
        ),
    ],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_parameter_that_deepspeed_cannot_broadcast_is_named(
    values: torch.Tensor, dtype: torch.dtype, words: str
) -> None:
    model = nn.Linear(2, 2)
    model.odd = nn.Parameter(values)
    model = model.to(dtype)
    with pytest.raises(RuntimeError, match="to view"):
        model.odd.data.view(torch.uint8)  # as DeepSpeed does
    with pytest.raises(InputError) as raised:
        check_layout(model, "deepspeed")
    assert words in raised.value.problem


def test_other_parameters_pass() -> None:
    model = nn.Linear(2, 2)
    model.rows = nn.Parameter(torch.ones(8, 16)[:, :8])
    model.none = nn.Parameter(torch.ones(0, 2), requires_grad=False)
    check_layout(model.bfloat16(), "deepspeed")
    model.odd = nn.Parameter(torch.ones(16, 8).t())
    others: tuple[Family, ...] = ("single", "ddp", "fsdp")
    for family in others:
        check_layout(model, family)


def test_a_parameter_that_fully_shard_cannot_take_is_named() -> None:
    model = nn.Linear(2, 2)
    model.odd = nn.Parameter(torch.ones(16, 8).t())
    with pytest.raises(InputError, match="fsdp2 cannot take the parameter odd: it is not contiguous"):
        check_layout(model, "fsdp2")
