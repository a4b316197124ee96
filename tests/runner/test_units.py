"""How often a step runs each unit, on real modules."""

from itertools import repeat

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bench.runner.units import Units


class Inner(nn.Linear):
    pass


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.own = Inner(3, 3), nn.Linear(3, 3, bias=False)

    def forward(self, x_BC: Tensor) -> Tensor:
        y_BC: Tensor = self.own(self.inner(x_BC))
        return y_BC


class Model(nn.Module):
    """Runs its first block twice and its second once, with checkpointing around the block's call."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.once, self.never = Outer(), Inner(3, 3), Inner(3, 3)
        self.head = nn.Linear(3, 1)

    def forward(self, x_BC: Tensor) -> Tensor:
        for _ in range(2):
            x_BC = checkpoint(self.twice, x_BC, use_reentrant=False)
        y_B1: Tensor = self.head(self.once(x_BC))
        return y_B1


def test_runs_of_forward_alone_count() -> None:
    model = Model()
    units = Units(model, ("Outer", "Inner"))
    with units.watched(repeat(torch.ones(2, 3), 3)) as batches:
        for batch in batches:
            model(batch).sum().backward()  # backward runs the checkpointed block again
    model(torch.ones(2, 3))  # not counted
    # Outer has 9 parameters beside Inner's 12.
    assert units.parameters_by_runs() == {2: 9 + 12, 1: 12, 0: 12}


def test_units_that_run_irregularly_are_not_known() -> None:
    model = Model()
    units = Units(model, ("Inner",))
    with units.watched(repeat(torch.ones(2, 3), 2)) as batches:
        model(next(batches))
        model.once(next(batches))  # in all, the two steps run each unit an even number of times
    assert units.parameters_by_runs() is None


def test_a_model_without_units() -> None:
    model = Model()
    units = Units(model, ())
    with units.watched(repeat(torch.ones(2, 3), 1)) as batches:
        model(next(batches))
    assert units.parameters_by_runs() == {}


def test_backward_gathers_what_it_passes_and_the_unit_before() -> None:
    def regathered(*trained: str) -> dict[int, int] | None:
        model = Model().requires_grad_(False)
        for name in trained:
            model.get_submodule(name).requires_grad_(True)
        units = Units(model, ("Outer", "Inner"))
        with units.watched(repeat(torch.ones(2, 3), 2)) as batches:
            for batch in batches:
                model(batch).sum().backward()
        return units.parameters_regathered()

    inner, own = 12, 9
    assert regathered("head") == {1: inner, 0: inner + own + inner}  # of the last unit, fetched ahead
    assert regathered("head", "once") == {1: inner + own, 0: inner + inner}
    assert regathered("twice.own") == {2: inner + own, 1: inner, 0: inner}
