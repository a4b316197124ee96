"""What counts as a step: cycles of optimizers, engines around them, and steps that a scaler skips."""

import gc

import pytest
import torch

from bench.observe.steps import LEFT_BEHIND, Steps


class Optimizer:
    pass


class Seen:
    def __init__(self) -> None:
        self.ends: list[bool] = []
        self.restarts = 0
        self.steps = Steps(self.ends.append, self._restart)

    def _restart(self) -> None:
        self.restarts += 1
        self.ends.clear()

    def step(self, *optimizers: object) -> None:
        for optimizer in optimizers:
            self.steps.enter()
            self.steps.leave(optimizer)


def test_each_step_of_a_single_optimizer_is_a_step() -> None:
    seen, one = Seen(), Optimizer()
    seen.step(one, one, one)
    assert (seen.ends, seen.restarts) == ([False] * 3, 0)


def test_with_several_optimizers_a_cycle_is_a_step() -> None:
    seen, critic, generator = Seen(), Optimizer(), Optimizer()
    for _ in range(3):
        seen.step(*[critic] * 5, generator)
    assert seen.restarts == 1  # what were steps before the generator's first were parts of one
    assert seen.ends == [False] * 2
    assert seen.steps.optimizers == [critic, generator]


def test_an_optimizer_of_an_earlier_part_of_the_script_is_left_behind() -> None:
    seen, head, whole = Seen(), Optimizer(), Optimizer()
    seen.step(*[head] * 8)
    seen.step(*[whole] * 80)
    assert seen.steps.optimizers == [whole]
    assert len(seen.ends) == 80 - 1 - LEFT_BEHIND


def test_an_optimizer_within_an_engine_makes_no_step_of_its_own() -> None:
    seen, engine, inner = Seen(), Optimizer(), Optimizer()
    for calls in (1, 3):
        seen.steps.enter()
        seen.step(*[inner] * calls)
        seen.steps.leave(engine, skipped=calls == 3)
    assert seen.ends == [False, True]
    assert seen.steps.optimizers == [engine]


def test_one_that_raises_leaves_nothing_behind() -> None:
    seen, outer, later = Seen(), Optimizer(), Optimizer()
    seen.steps.enter()
    seen.steps.enter()
    seen.steps.fail()
    seen.steps.leave(outer)
    seen.step(outer)
    assert seen.ends == [False, False]
    seen.steps.enter()
    seen.steps.fail()
    seen.step(later)
    assert seen.steps.optimizers == [outer, later]


def test_an_optimizer_that_is_gone_is_waited_for_no_longer() -> None:
    seen, first, second = Seen(), Optimizer(), Optimizer()
    seen.step(first, second)
    del first
    gc.collect()
    seen.step(second, second)
    assert seen.ends == [False, False]


@pytest.mark.parametrize("steps", [1, 8])
def test_a_model_that_follows_another_begins_anew(steps: int) -> None:
    seen, first = Seen(), Optimizer()
    seen.step(*[first] * steps)
    del first
    gc.collect()
    second = Optimizer()
    seen.step(*[second] * 4)
    assert (seen.restarts, len(seen.ends)) == (1, 3)


def test_meta_learning_makes_an_optimizer_in_each_step() -> None:
    seen, outer = Seen(), Optimizer()
    for _ in range(8):
        inner = Optimizer()
        seen.step(*[inner] * 5, outer)
        del inner
        gc.collect()
    assert (seen.restarts, len(seen.ends)) == (2, 7)  # the first is cut off by its new optimizers


def test_each_epoch_may_make_an_optimizer_of_the_same_parameters() -> None:
    seen, model = Seen(), torch.nn.Linear(2, 2)
    for _ in range(3):
        optimizer = torch.optim.SGD(model.parameters())
        seen.step(*[optimizer] * 4)
        del optimizer
        gc.collect()
    assert (seen.restarts, len(seen.ends)) == (0, 12)
