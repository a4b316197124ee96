"""What the first forward does with weights that are not gathered, or that no optimizer has."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.testing._internal.distributed.fake_pg import FakeStore

from bench.errors import InputError, WorkloadError
from bench.runner.forward import Forward

X, ELSEWHERE = torch.ones(2, 8), nn.Linear(8, 8)


class Unit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return y

    def encode(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return y


class Model(nn.Module):
    """Computes as it is told, with two units and a head."""

    def __init__(self, compute: Callable[["Model", Tensor], Tensor]) -> None:
        super().__init__()
        self.units, self.head = nn.ModuleList(Unit() for _ in "ab"), nn.Linear(8, 8)
        self.compute = compute

    def forward(self, x: Tensor) -> Tensor:
        return self.compute(self, x).square().mean()

    def all(self, x: Tensor) -> Tensor:
        for unit in self.units:
            x = unit(x)
        y: Tensor = self.head(x)
        return y


def first(model: nn.Module, shard: Callable[[nn.Module], nn.Module] = nn.Module.train, **task: Any) -> None:
    forward = Forward(SimpleNamespace(**task), model)  # type: ignore[arg-type]
    forward(shard(model), X)


@pytest.fixture
def world() -> Iterator[None]:
    """The first of two ranks, of which the other sends nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


def sharded(model: nn.Module) -> nn.Module:
    """As accelerate does for `fsdp`."""
    return FullyShardedDataParallel(
        model, auto_wrap_policy=ModuleWrapPolicy({Unit}), device_id=torch.device("cpu"), use_orig_params=True
    )


def fully_sharded(model: Any) -> nn.Module:
    """As accelerate does for `fsdp2`."""
    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    for module in (*model.units, model):
        fully_shard(module, mesh=mesh)
    return model  # type: ignore[no-any-return]


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize(
    ("compute", "named"),
    [
        (lambda model, x: model.all(x) + model.units[1].linear.weight.square().mean(), "units.1.linear.weight"),
        (lambda model, x: x * model.units[0].linear.bias.mean() + model.all(x), "units.0.linear.bias"),
        (lambda model, x: nn.functional.linear(model.all(x), model.units[0].linear.weight), "units.0.linear.weight"),
        (lambda model, x: model.all(x) @ model.units[0].linear.weight.mT, "units.0.linear.weight"),
        (lambda model, x: model.all(model.units[0].encode(x)), "units.0.linear.weight"),
        (lambda model, x: model.all(x) + model.units[1].linear(x), "units.1.linear.weight"),
    ],
)
def test_a_weight_that_fsdp1_has_not_gathered_is_named(compute: Any, named: str) -> None:
    words = f"^FSDP1 gathers the weights of a unit .* and the model uses {named} at another time; let it call"
    first(model := Model(compute))
    with pytest.raises(InputError, match=words):
        first(model, sharded)


@pytest.mark.usefixtures("world")
def test_so_is_a_frozen_one_in_an_operator_that_fails() -> None:
    model = Model(lambda model, x: model.all(model.units[0].encode(x)))
    model.units.requires_grad_(False)
    with pytest.raises(InputError, match=r"the model uses units\.0\.linear\.weight at another time"):
        first(model, sharded)


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("shard", [nn.Module.train, sharded, fully_sharded])
def test_weights_that_units_use_themselves_pass(shard: Callable[[nn.Module], nn.Module]) -> None:
    def compute(model: Model, x: Tensor) -> Tensor:
        with torch.no_grad():
            model.norm = model.units[0].linear.weight.norm()  # not trained
        return model.all(x.to(model.units[0].linear.weight.dtype))

    first(Model(compute), shard)


class Holder(nn.Linear):
    """Adds what it holds outside its parameters."""

    def __init__(self, held: Any) -> None:
        super().__init__(8, 8)
        self.held = held

    def forward(self, x: Tensor) -> Tensor:
        for part in self.held.values() if isinstance(self.held, dict) else self.held:
            x = x + part(x) if callable(part) else x + part
        return super().forward(x).mean()


@pytest.mark.parametrize(
    ("held", "words"),
    [
        ([nn.Linear(8, 8)], r"^Holder\.held of the workload's model holds a Linear: it gets a gradient"),
        ({"head": nn.Sequential(nn.Linear(8, 8))}, r"^Holder\.held .* holds a Sequential: it gets"),
        ([nn.Parameter(torch.ones(8))], r"^Holder\.held .* holds a Parameter: it gets"),
        ([lambda x: 2 * ELSEWHERE(x)], r"^forward .* uses a parameter of the shape \(8"),
        ([nn.Linear(4, 8)], r"^Holder\.held of the workload's model holds a Linear"),  # which raises
    ],
)
def test_a_trained_weight_that_no_optimizer_has_is_named(held: Any, words: str) -> None:
    with pytest.raises(WorkloadError, match=words):
        first(Holder(held))


@pytest.mark.parametrize(
    "held",
    [
        [nn.Linear(8, 8).requires_grad_(False)],
        [lambda x: ELSEWHERE(x).detach()],
        [shared := nn.Linear(8, 8), shared],
    ],
)
def test_a_teacher_and_another_name_of_a_layer_pass(held: Any) -> None:
    model = Holder(held)
    if len(held) == 2:
        model.layer = held[0]
    first(model)


def test_weights_of_a_loss_are_not_to_be_trained() -> None:
    critic = nn.Linear(8, 1)
    first(Model(Model.all), loss=lambda output, _: output + critic(X).mean())


def test_other_errors_stay_as_they_are() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        first(Model(lambda model, x: model.head(x[:, :4])))


def test_a_derivative_in_forward_is_seen() -> None:
    def compute(model: Model, x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        return torch.autograd.grad(model.all(x).sum(), x, create_graph=True)[0]

    for derives in (compute, Model.all):
        forward = Forward(SimpleNamespace(), model := Model(derives))  # type: ignore[arg-type]
        forward(model, X)
        assert forward.derives == (derives is compute)


class Doubled(torch.autograd.Function):
    """With all that transforms need."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return 2 * grad


def test_so_is_one_of_torch_func_through_modules_of_zero3(monkeypatch: pytest.MonkeyPatch) -> None:
    def compute(model: Model, x: Tensor) -> Tensor:
        return torch.func.grad(lambda x: Doubled.apply(model.all(x)).sum())(x)

    first(Model(compute))
    monkeypatch.setattr(Doubled, "__module__", "deepspeed.runtime.zero.linear")
    with pytest.raises(InputError, match=r"^ZeRO-3 gathers the weights of a module for its forward and one backward"):
        first(Model(compute))
