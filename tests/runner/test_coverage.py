"""Which modules run in the steps of a warm-up, and which parameters get a gradient; on all backends: see tests/e2e."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bench.records.rank_outcome import Coverage
from bench.runner.coverage import UNFINISHED, Used

X = torch.ones(2, 4)


def coverage(model: nn.Module, inputs: list[Any], loss: Callable[[Any], Tensor] | None = None) -> Coverage:
    """Of a step for each of the inputs."""
    used = Used(model)
    with used.watched(iter(inputs)) as batches:
        for batch in batches:
            output = model(batch)
            (loss(output) if loss else output.sum()).backward()
            model.zero_grad()
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert not any(parameter._backward_hooks for parameter in model.parameters())
    return used.coverage(Accelerator(cpu=True), {})


class Model(nn.Module):
    """Computes with some of its parts, each of 20 parameters."""

    def __init__(self, *parts: str, forward: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        for part in parts:
            self.add_module(part, nn.Linear(4, 4))
        self.of = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.of(self, x)


def test_the_largest_modules_without_a_gradient_are_named() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Model("used", "spare", "more", forward=lambda m, x: m.used(x)))
    model[1].more.requires_grad_(False)
    found = coverage(model, [X])
    assert (found.parameters, found.trainable_parameters) == (80, 60)
    assert (found.without_gradient, found.without_gradient_names) == (20, ("1.spare",))
    # What a simple module holds may be used by the one around it, which ran.
    assert found.not_run == 0


def test_what_a_method_of_a_module_takes_from_it_is_not_said_to_be_unused() -> None:
    """As `self.enc.features(x)` does: the module's own forward never runs, and a part of it does."""

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.position, self.inner = nn.Parameter(torch.ones(100)), nn.Linear(4, 4)
            self.requires_grad_(False)

        def features(self, x: Tensor) -> Tensor:
            taken: Tensor = self.inner(x) + self.position[:4]
            return taken

    model = Model("head", forward=lambda m, x: m.head(m.encoder.features(x)))
    model.encoder = Encoder()
    assert coverage(model, [X]).not_run == 0
    spare = Model("head", forward=lambda m, x: m.head(x))
    spare.encoder = Encoder()
    assert coverage(spare, [X]).not_run > 0


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(5))
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x * self.scale.sum()


def test_frozen_modules_that_never_run_are_found_too() -> None:
    model = Model("used", forward=lambda m, x: m.used(x))
    model.tower = Tower().requires_grad_(False)
    found = coverage(model, [X])
    assert (found.without_gradient, found.trainable_parameters) == (0, 20)
    assert (found.not_run, found.not_run_names, found.parameters) == (45, ("tower",), 65)


def test_a_gradient_in_any_step_counts() -> None:
    model = Model("used", "other", forward=lambda m, x: m.used(x) if x.shape[0] > 1 else m.other(x))
    assert coverage(model, [X, X]).without_gradient_names == ("other",)
    assert coverage(model, [X, X[:1]]).without_gradient == 0


def test_a_gradient_of_zero_is_one_and_none_is_not() -> None:
    class Silent(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: Tensor, weight: Tensor) -> Tensor:
            return x + weight.sum()

        @staticmethod
        def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
            return gradient, None

    model = Model(
        "used", "zero", "silent", forward=lambda m, x: Silent.apply(m.used(x) + 0 * m.zero(x), m.silent.weight)
    )
    found = coverage(model, [X])
    assert found.without_gradient_names == ("silent",)
    assert found.without_gradient == 20


def test_parameters_that_a_module_around_them_uses_count_as_used() -> None:
    model = Model("inner", forward=lambda m, x: x @ m.inner.weight + m.inner.bias)
    assert coverage(model, [X]).without_gradient == 0
    attention = nn.MultiheadAttention(4, 1)
    for frozen in (False, True):
        attention.out_proj.requires_grad_(not frozen)
        found = coverage(Attending(attention), [X])
        assert (found.without_gradient, found.not_run) == (0, 0)


class Attending(nn.Module):
    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.attention(x, x, x)[0]
        return output


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_modules_get_their_gradients(reentrant: bool) -> None:
    model = Model(
        "first",
        "used",
        "spare",
        forward=lambda m, x: checkpoint(m.used, m.first(x), use_reentrant=reentrant),  # type: ignore[no-any-return]
    )
    assert coverage(model, [X, X]).without_gradient_names == ("spare",)


def test_a_shared_weight_is_one_parameter() -> None:
    model = Model("one", "other", forward=lambda m, x: m.one(x))
    model.other.weight = model.one.weight
    found = coverage(model, [X])
    assert (found.parameters, found.without_gradient, found.without_gradient_names) == (24, 4, ("other",))


class Routed(nn.Module):
    """Sends all samples to one expert, by their first value."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList([Tower() for _ in range(4)])
        self.spare = Tower()

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.experts[int(x[0, 0])](x)
        return output


def test_experts_without_samples_are_no_part_that_is_left_out() -> None:
    found = coverage(Routed(), [X, 2 * X])
    assert (found.not_routed, found.without_gradient, found.without_gradient_names) == (90, 45, ("spare",))
    assert (found.not_run, found.not_run_names) == (45, ("spare",))


def test_layers_that_no_step_uses_are_left_out() -> None:
    model = Model(forward=lambda m, x: m.layers[0](x))
    model.layers = nn.ModuleList([Tower(), Tower(), Tower()])
    found = coverage(model, [X, X])
    assert (found.without_gradient, found.without_gradient_names) == (90, ("layers.1", "layers.2"))
    assert found.not_routed == 0


def test_unwatched_steps_say_nothing_but_the_keys() -> None:
    found = Used(nn.Linear(4, 4)).coverage(Accelerator(cpu=True), {"text": "list"})
    assert (found.without_gradient, found.not_run, found.dropped_keys) == (None, None, {"text": "list"})


def test_the_words_of_ddp_are_explained() -> None:
    model = Model("used", "spare", forward=lambda m, x: m.used(x))
    used = Used(model)
    with used.watched(iter([X])) as batches:
        model(next(batches)).sum().backward()
    with pytest.raises(RuntimeError, match=r"not use: spare; set train.find_unused_parameters=true"), used.explained():
        raise RuntimeError(UNFINISHED + " before")
    with pytest.raises(RuntimeError, match=r"^other$"), used.explained():
        raise RuntimeError("other")
