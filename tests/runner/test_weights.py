"""Weights that are drawn in place: a parameter with several owners once, and alike on all ranks.

tests/e2e/test_weights.py compares what every backend gets.
"""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench.errors import WorkloadError
from bench.runner import same_build
from bench.runner.same_build import check_same_build
from bench.runner.weights import Draw, Undrawn

CPU = torch.device("cpu")
SEED = 7


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(3, 2)
        self.inner = nn.Linear(2, 2).requires_grad_(False)
        self.head = nn.Linear(2, 3, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.tensor(2.0, device="cpu"))


def counting(calls: list[tuple[str, int]]) -> Draw:
    def draw(name: str, seed: int, start: int, out: Tensor) -> None:
        assert seed == SEED
        calls.append((name, start))
        out.copy_(torch.arange(start, start + len(out)))

    return draw


def undrawn(calls: list[tuple[str, int]]) -> tuple[Any, Undrawn]:
    with torch.device("meta"):
        model = Tied()
    return model, Undrawn(model, counting(calls), SEED)


def test_a_parameter_with_several_owners_is_drawn_once() -> None:
    calls: list[tuple[str, int]] = []
    model, weights = undrawn(calls)
    weights.fill_all(CPU)
    assert calls == [("embedding.weight", 0), ("inner.weight", 0), ("inner.bias", 0)]
    assert model.head.weight is model.embedding.weight
    assert model.embedding.weight.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert [one.requires_grad for one in model.parameters()] == [True, False, False]
    assert model.scale.item() == 2


def test_one_module_is_filled_and_the_others_wait() -> None:
    calls: list[tuple[str, int]] = []
    model, weights = undrawn(calls)
    weights.fill(model.inner, CPU)
    assert [one.is_meta for one in model.parameters()] == [True, False, False]
    weights.fill(model, CPU)  # has no parameters of its own
    weights.fill(model.inner, CPU)
    assert len(calls) == 2


def test_ranks_that_would_draw_other_weights_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model, weights = undrawn([])

    def gathered(mine: list[Any]) -> list[Any]:
        other = Undrawn(model, lambda name, seed, start, out: out.fill_(len(name)), SEED)
        monkeypatch.setattr(same_build, "gather_object", lambda theirs: [mine[0], theirs[0]])
        check_same_build(model, other)
        return mine

    monkeypatch.setattr(same_build, "gather_object", gathered)
    with pytest.raises(WorkloadError, match=r"embedding\.weight of rank 1 is not that of rank 0"):
        check_same_build(model, weights)


def test_a_buffer_without_values_is_named() -> None:
    with torch.device("meta"):
        model = nn.BatchNorm1d(3)
    with pytest.raises(WorkloadError, match="leaves the buffer running_mean without values"):
        Undrawn(model, counting([]), SEED)
