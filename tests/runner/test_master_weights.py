"""fp32 masters over bf16 weights: what they keep, what they save, and that nothing of the inner optimizer is lost."""

import io
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from bench.runner.master_weights import MasterWeights


@pytest.fixture
def accelerator() -> Iterator[Accelerator]:
    yield Accelerator(cpu=True)
    AcceleratorState._reset_state(reset_partial_state=True)
    PartialState._reset_state()
    GradientState._reset_state()


def weights(*shapes: tuple[int, ...], seed: int = 0) -> list[nn.Parameter]:
    torch.manual_seed(seed)
    return [nn.Parameter(torch.randn(shape).bfloat16()) for shape in shapes]


def set_gradients(parameters: list[nn.Parameter], seed: int) -> None:
    torch.manual_seed(seed)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape).bfloat16()


def adamw(parameters: Any, **settings: Any) -> AdamW:
    return AdamW(parameters, **{"lr": 1e-2, "weight_decay": 0.01, **settings})


def test_groups_keep_their_settings_and_their_order() -> None:
    first, second, third = weights((3,), (2, 2), (5,))
    groups = [
        {"params": [first, third], "lr": 0.3, "weight_decay": 0.0, "note": "kept"},
        {"params": [second], "betas": (0.5, 0.6)},
    ]
    plain = adamw([dict(group, params=list(group["params"])) for group in groups], eps=1e-5, amsgrad=True)
    masters = MasterWeights(
        adamw([dict(group, params=list(group["params"])) for group in groups], eps=1e-5, amsgrad=True)
    )
    assert masters.defaults == plain.defaults
    assert len(masters.param_groups) == 2
    for mine, wanted in zip(masters.param_groups, plain.param_groups, strict=True):
        assert {name: mine[name] for name in mine if name != "params"} == {
            name: wanted[name] for name in wanted if name != "params"
        }
        for master, weight in zip(mine["params"], wanted["params"], strict=True):
            assert master.dtype == torch.float32
            assert torch.equal(master.detach(), weight.detach().float())
    assert masters.param_groups is masters.inner.param_groups
    assert masters.state is masters.inner.state
    assert masters.defaults is masters.inner.defaults


def test_it_is_an_optimizer_and_accelerate_wraps_it(accelerator: Accelerator) -> None:
    [weight] = weights((4,))
    masters = MasterWeights(adamw([weight]))
    assert isinstance(masters, Optimizer)
    wrapped = accelerator.prepare(masters)
    assert isinstance(wrapped, AcceleratedOptimizer)
    before = weight.detach().clone()
    set_gradients([weight], 1)
    wrapped.step()
    assert not torch.equal(weight, before)
    assert wrapped.param_groups is masters.inner.param_groups
    wrapped.zero_grad()
    assert weight.grad is None


@pytest.mark.parametrize("prepared", [False, True])
def test_a_scheduler_made_from_it_changes_the_rate_that_steps(accelerator: Accelerator, prepared: bool) -> None:
    [weight] = weights((4,))
    masters = MasterWeights(SGD([weight], lr=1.0))
    scheduler: Any = LambdaLR(masters, lambda step: 0.5**step)
    optimizer: Any = masters
    if prepared:
        optimizer, scheduler = accelerator.prepare(masters, scheduler)
    moved = []
    for _ in range(3):
        before = masters.masters[0].detach().clone()
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        moved.append((before - masters.masters[0].detach()).max().item())
    assert moved == pytest.approx([1.0, 0.5, 0.25], rel=1e-6)


def train(optimizer: Optimizer, weight: nn.Parameter, steps: int) -> None:
    for _ in range(steps):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        optimizer.zero_grad()


def test_updates_that_bf16_would_lose_add_up() -> None:
    # Adam's first steps move by the learning rate; half a unit in the last place of a bf16 1.0 is 2**-9.
    settings = {"lr": 1e-4, "weight_decay": 0.0}
    bare, held = (nn.Parameter(torch.ones(8).bfloat16()) for _ in range(2))
    train(adamw([bare], **settings), bare, 200)
    train(MasterWeights(adamw([held], **settings)), held, 200)
    assert torch.equal(bare, torch.ones_like(bare))
    assert held.detach().float() == pytest.approx(torch.full((8,), 0.98), abs=2**-8)


def test_masters_step_exactly_as_fp32_weights_would() -> None:
    low = weights((16, 3), (7,))
    exact = [nn.Parameter(weight.detach().float()) for weight in low]
    masters, reference = MasterWeights(adamw(low)), adamw(exact)
    for turn in range(5):
        set_gradients(low, turn)
        for parameter, weight in zip(exact, low, strict=True):
            parameter.grad = weight.grad.float()
        masters.step()
        reference.step()
        masters.zero_grad()
    for weight, master, parameter in zip(low, masters.masters, exact, strict=True):
        assert torch.equal(master, parameter)
        assert torch.equal(weight, parameter.bfloat16())
    assert {moment.dtype for state in masters.state.values() for moment in state.values()} == {torch.float32}


def test_weights_keep_their_identity_and_dtype() -> None:
    [weight] = weights((4,))
    storage = weight.data_ptr()
    masters = MasterWeights(adamw([weight]))
    set_gradients([weight], 1)
    masters.step()
    assert masters.weights[0] is weight
    assert (weight.data_ptr(), weight.dtype, weight.requires_grad) == (storage, torch.bfloat16, True)


def test_clipping_returns_the_fp32_norm_and_the_step_uses_what_it_clipped() -> None:
    [weight] = weights((1000,))
    masters = MasterWeights(SGD([weight], lr=1.0))
    before = masters.masters[0].detach().clone()
    set_gradients([weight], 1)
    exact = weight.grad.double().norm()
    norm = masters.clip_grad_norm_(0.5)
    assert (norm.dtype, norm.ndim) == (torch.float32, 0)
    assert norm.item() == pytest.approx(exact.item(), rel=1e-6)
    assert weight.grad.double().norm() == exact
    weight.grad.zero_()  # a second upcast would step by nothing
    masters.step()
    moved = before - masters.masters[0].detach()
    assert moved.double().norm().item() == pytest.approx(0.5, rel=1e-4)


def test_every_step_sees_new_gradients_clipped_or_not() -> None:
    [weight] = weights((4,))
    masters = MasterWeights(SGD([weight], lr=1.0))
    for size, clipped in ((1.0, True), (2.0, False), (3.0, True), (4.0, False)):
        before = masters.masters[0].detach().clone()
        weight.grad = torch.full_like(weight, size)
        if clipped:
            masters.clip_grad_norm_(1e6)
        masters.step()
        assert torch.allclose(before - masters.masters[0].detach(), torch.tensor(size))


def test_a_weight_without_a_gradient_stays_as_it_is() -> None:
    used, unused = weights((4,), (4,))
    before = unused.detach().clone()
    masters = MasterWeights(adamw([used, unused]))
    set_gradients([used], 1)
    norm = masters.clip_grad_norm_(1e6)
    assert norm.item() == pytest.approx(used.grad.double().norm().item(), rel=1e-6)
    masters.step()
    assert torch.equal(unused, before)


@pytest.mark.parametrize("to_none", [True, False])
def test_zero_grad_clears_both(to_none: bool) -> None:
    low = weights((4,), (2,))
    masters = MasterWeights(adamw(low))
    set_gradients(low, 1)
    masters.clip_grad_norm_(1.0)
    masters.zero_grad(set_to_none=to_none)
    for tensor in [*low, *masters.masters]:
        assert (tensor.grad is None) if to_none else not tensor.grad.any()  # type: ignore[union-attr]


def test_gradients_that_were_cleared_after_clipping_are_not_stepped() -> None:
    [weight] = weights((4,))
    masters = MasterWeights(SGD([weight], lr=1.0))
    set_gradients([weight], 1)
    masters.clip_grad_norm_(1.0)
    masters.zero_grad()
    before = masters.masters[0].detach().clone()
    masters.step()
    assert torch.equal(masters.masters[0], before)


def test_gradients_that_come_after_a_cleared_clip_are_stepped() -> None:
    [weight] = weights((4,))
    masters = MasterWeights(SGD([weight], lr=1.0))
    set_gradients([weight], 1)
    masters.clip_grad_norm_(1.0)
    masters.zero_grad()
    weight.grad = torch.ones_like(weight)
    before = masters.masters[0].detach().clone()
    masters.step()
    assert torch.allclose(before - masters.masters[0].detach(), torch.tensor(1.0))


def saved(state: object) -> Any:
    """Through a file, as a checkpoint goes."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file)


def stepped(optimizer: Any, low: list[nn.Parameter], turns: range) -> list[Tensor]:
    for turn in turns:
        set_gradients(low, turn)
        optimizer.step()
        optimizer.zero_grad()
    return [weight.detach().clone() for weight in low]


@pytest.mark.parametrize("prepared", [False, True])
def test_a_resume_loses_nothing(accelerator: Accelerator, prepared: bool) -> None:
    settings = {"lr": 1e-4}  # small enough that the weights alone do not hold the masters
    low = weights((16, 3), (7,))
    first: Any = MasterWeights(adamw(low, **settings))
    stepped(first, low, range(5))
    state, checkpoint = saved(first.state_dict()), [weight.detach().clone() for weight in low]
    wanted = stepped(first, low, range(5, 30))

    resumed = [nn.Parameter(weight) for weight in checkpoint]
    second: Any = MasterWeights(adamw(resumed, lr=1.0))
    inner = second
    if prepared:
        second = accelerator.prepare(second)
    second.load_state_dict(state)
    assert second.param_groups[0]["lr"] == 1e-4
    found = stepped(second, resumed, range(5, 30))
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(inner.masters, first.masters, strict=True))
    assert all(master in inner.state for master in inner.masters)

    without: Any = MasterWeights(adamw([nn.Parameter(weight) for weight in saved(checkpoint)], **settings))
    without.inner.load_state_dict({name: value for name, value in state.items() if name != "masters"})
    lost = stepped(without, without.weights, range(5, 30))
    assert not all(torch.equal(a, b) for a, b in zip(lost, wanted, strict=True))


def test_a_scheduler_still_acts_after_a_resume() -> None:
    [weight] = weights((4,))
    masters = MasterWeights(SGD([weight], lr=1.0))
    scheduler = LambdaLR(masters, lambda step: 0.5**step)
    masters.load_state_dict(saved(masters.state_dict()))
    masters.step()
    scheduler.step()
    assert masters.inner.param_groups[0]["lr"] == 0.5


def test_a_closure_makes_the_gradients_that_are_stepped() -> None:
    low = weights((4,))
    masters, plain = MasterWeights(SGD(low, lr=0.5)), [nn.Parameter(weight.detach().clone()) for weight in low]
    calls = []

    def closure() -> float:
        assert torch.is_grad_enabled()
        masters.zero_grad()
        loss = (low[0].float() ** 2).sum()
        loss.backward()
        calls.append(loss.item())
        return loss.item()

    assert masters.step(closure) == calls[0]
    assert len(calls) == 1
    torch.testing.assert_close(masters.masters[0].detach(), plain[0].detach().float() - 0.5 * low_gradient(plain[0]))


def low_gradient(weight: Tensor) -> Tensor:
    """Of the sum of squares, as a bf16 weight gets it."""
    return (2 * weight.detach().float()).bfloat16().float()


def test_a_group_that_comes_later_has_masters_and_steps() -> None:
    first, second = weights((4,), (3,))
    masters = MasterWeights(SGD([first], lr=1.0))
    masters.add_param_group({"params": second, "lr": 0.5})
    assert [master.shape for master in masters.masters] == [(4,), (3,)]
    assert masters.param_groups is masters.inner.param_groups
    before = second.detach().float()
    second.grad = torch.ones_like(second)
    masters.step()
    torch.testing.assert_close(masters.masters[1].detach(), before - 0.5)
    torch.testing.assert_close(second.detach(), (before - 0.5).bfloat16())
    with pytest.raises(ValueError, match="1 of these weights are in a group"):
        masters.add_param_group({"params": [first]})


def test_a_group_that_is_refused_changes_nothing() -> None:
    first, later = weights((4,), (4,))
    masters = MasterWeights(adamw([("first", first)]))
    with pytest.raises(ValueError, match="names"):
        masters.add_param_group({"params": [later]})
    assert [id(weight) for weight in masters.weights] == [id(first)]
    assert len(masters.masters) == 1


def test_a_second_clip_sees_new_gradients() -> None:
    [weight] = weights((4,))
    masters = MasterWeights(SGD([weight], lr=1.0))
    weight.grad = torch.ones_like(weight)
    assert masters.clip_grad_norm_(100) == 2
    weight.grad = torch.full_like(weight, 5.0)
    assert masters.clip_grad_norm_(100) == 10
    before = masters.masters[0].detach().clone()
    masters.step()
    torch.testing.assert_close(masters.masters[0].detach(), before - 5)


def test_an_optimizer_that_has_stepped_keeps_its_state() -> None:
    low = weights((5,))
    inner = adamw(low)
    set_gradients(low, 1)
    inner.step()
    moments = inner.state[low[0]]["exp_avg"].clone()
    masters = MasterWeights(inner)
    [state] = masters.state.values()
    assert list(masters.state) == masters.masters
    assert state["exp_avg"].dtype == torch.float32
    assert torch.equal(state["exp_avg"], moments.float())
    assert state["step"] == 1


def test_masters_are_rebuilt_from_the_live_weights_and_adams_state_moves_along() -> None:
    low = weights((5,), (2, 2))
    masters = MasterWeights(adamw(low))
    stepped(masters, low, range(3))
    held, moments = list(masters.masters), [state["exp_avg"].clone() for state in masters.state.values()]
    with torch.no_grad():
        for weight in low:  # as after prepare(), or a checkpoint of the model alone
            weight.data = torch.randn(weight.shape).bfloat16()
    masters.rebuild()
    assert all(master is kept for master, kept in zip(masters.masters, held, strict=True))
    assert all(torch.equal(m.detach(), w.detach().float()) for m, w in zip(masters.masters, low, strict=True))
    assert all(torch.equal(s["exp_avg"], m) for s, m in zip(masters.state.values(), moments, strict=True))
    stepped(masters, low, range(3))
    assert all(torch.equal(w.detach(), m.detach().bfloat16()) for m, w in zip(masters.masters, low, strict=True))


@pytest.mark.gpu
def test_rebuilt_masters_are_where_the_weights_are() -> None:
    low = weights((5,))
    masters = MasterWeights(adamw(low))
    stepped(masters, low, range(1))
    low[0].data = low[0].data.cuda()
    masters.rebuild()
    assert masters.masters[0].device.type == "cuda"
    [state] = masters.state.values()
    assert state["exp_avg"].device.type == "cuda"


def test_a_state_without_masters_gets_them_from_the_weights_and_one_of_others_is_refused() -> None:
    low = weights((4,))
    masters = MasterWeights(adamw(low))
    plain = adamw([nn.Parameter(low[0].detach().float())])
    masters.load_state_dict(plain.state_dict())
    assert torch.equal(masters.masters[0].detach(), low[0].detach().float())
    other = MasterWeights(adamw(weights((1,))))
    with pytest.raises(ValueError, match="differ from these weights"):
        masters.load_state_dict(other.state_dict())
