"""The optimizers that a cell can name: what steps which parameters, and that it steps them right."""

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from examples import cell
from pydantic import ValidationError
from torch import Tensor, nn
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.optim import SGD, AdamW, Muon, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.testing._internal.distributed.fake_pg import FakeStore

from bench.backends import forbids
from bench.errors import InputError
from bench.model.workload import Pi07
from bench.records.cell import Train
from bench.runner.master_weights import MasterWeights
from bench.runner.muon import GatheredMuon, Together, matrices
from bench.runner.optimizers import optimizer_of


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 8)
        self.linear = nn.Linear(8, 8)
        self.position = nn.Parameter(torch.randn(8, 8))
        self.norm = nn.LayerNorm(8)

    def forward(self, x_BC: Tensor) -> Tensor:
        return self.norm(x_BC + self.linear(x_BC @ self.position) + self.table.weight[0]).tanh()


class PatchEmbedding(nn.Linear):
    """A unit of its own, as in the bundled workload."""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4, 8)
        self.patches = PatchEmbedding(8, 8)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(8, 4, bias=False)

    def forward(self, x_BC: Tensor) -> Tensor:
        return self.head(self.blocks(self.patches(x_BC) + self.embedding.weight[0])).square().mean()


UNITS = ("Block", "PatchEmbedding")


def net() -> Net:
    torch.manual_seed(0)
    return Net()


def names(model: nn.Module, chosen: set[nn.Parameter]) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter in chosen}


def train(model: nn.Module, optimizer: Any, steps: int, dtype: torch.dtype = torch.float32) -> list[float]:
    random, losses = torch.Generator().manual_seed(1), []
    for _ in range(steps):
        loss = model(torch.randn(16, 8, generator=random).to(dtype))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


# --- which parameters are Muon's ------------------------------------------------------------------------------------


def test_muon_steps_the_matrices_of_hidden_layers() -> None:
    model = net()
    assert names(model, set(matrices(model, UNITS))) == {"blocks.0.linear.weight", "blocks.1.linear.weight"}


def test_a_matrix_that_is_tied_to_an_embedding_is_not_hidden_and_a_frozen_one_is_left_alone() -> None:
    tied, frozen = net(), net()
    tied.blocks[0].linear.weight = tied.embedding.weight
    frozen.blocks[0].requires_grad_(False)
    for model in (tied, frozen):
        assert names(model, set(matrices(model, UNITS))) == {"blocks.1.linear.weight"}


def test_of_the_bundled_workload_the_layers_are_hidden() -> None:
    model = Pi07(Pi07.Config(preset="tiny", n_layers=1)).build()
    chosen = names(model, set(matrices(model, Pi07.units)))
    layers = {name for name, parameter in model.named_parameters() if "layers." in name and parameter.ndim == 2}
    assert chosen == layers


def test_muon_without_a_matrix_is_refused() -> None:
    with pytest.raises(InputError, match=r"muon finds no matrix to update in the workload's units \(Norm\)"):
        optimizer_of(Train(optimizer="muon"), net(), ("Norm",))


# --- what it does with them -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"nesterov": False, "weight_decay": 0.0}, {"adjust_lr_fn": "original"}])
def test_over_whole_matrices_it_is_torchs_own(settings: dict[str, Any]) -> None:
    ours, theirs = net(), net()
    settings = {"lr": 0.02, "adjust_lr_fn": "match_rms_adamw", **settings}
    train(ours, GatheredMuon(matrices(ours, UNITS), **settings), 5)
    train(theirs, Muon(matrices(theirs, UNITS), **settings), 5)
    assert not torch.equal(ours.blocks[0].linear.weight, net().blocks[0].linear.weight)
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


def test_muon_and_adamw_step_together_what_each_would_alone() -> None:
    settings = Train(optimizer="muon", learning_rate=1e-2)
    together, apart = net(), net()
    train(together, optimizer_of(settings, together, UNITS), 5)
    hidden = list(matrices(apart, UNITS))
    kept = {id(parameter) for parameter in hidden}
    muon = Muon(hidden, lr=1e-2, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
    adamw = AdamW([p for p in apart.parameters() if id(p) not in kept], lr=1e-2, weight_decay=0.01)

    class Both:
        def step(self) -> None:
            muon.step()
            adamw.step()

        def zero_grad(self) -> None:
            apart.zero_grad()

    train(apart, Both(), 5)
    assert all(torch.equal(a, b) for a, b in zip(together.parameters(), apart.parameters(), strict=True))


def test_it_learns() -> None:
    model = net()
    losses = train(model, optimizer_of(Train(optimizer="muon", learning_rate=1e-2), model, UNITS), 60)
    assert losses[-1] < losses[0] / 10


@pytest.mark.parametrize("masters", [False, True])
def test_a_loaded_state_goes_on_as_the_saved_one(masters: bool) -> None:
    """A load replaces groups and state: both parts must step the new ones."""
    dtype = torch.bfloat16 if masters else torch.float32

    def made() -> tuple[nn.Module, Any]:
        model = net().to(dtype)
        optimizer = optimizer_of(Train(optimizer="muon", learning_rate=1e-2), model, UNITS)
        return model, MasterWeights(optimizer) if masters else optimizer

    model, optimizer = made()
    train(model, optimizer, 3, dtype)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    expected = train(model, optimizer, 4, dtype)
    other, resumed = made()
    other.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    assert train(other, resumed, 4, dtype) == expected
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_masters_and_momenta_are_fp32() -> None:
    model = net().bfloat16()
    optimizer = MasterWeights(optimizer_of(Train(optimizer="muon"), model, UNITS))
    train(model, optimizer, 2, torch.bfloat16)
    state = [value for state in optimizer.state.values() for value in state.values() if value.numel() > 1]
    assert {value.dtype for value in [*optimizer.masters, *state]} == {torch.float32}


def test_a_scheduler_moves_both_rates() -> None:
    optimizer = optimizer_of(Train(optimizer="muon"), net(), UNITS)
    assert isinstance(optimizer, Together)
    optimizer.load_state_dict(optimizer.state_dict())  # as accelerate does when it wraps one
    scheduler = LambdaLR(optimizer, lambda step: 1.0 / (1 + step))
    optimizer.step()
    scheduler.step()
    assert [group["lr"] for part in optimizer.parts for group in part.param_groups] == [5e-5, 5e-5]


# --- AdamW and the user's own ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "fused", "foreach"),
    [({}, None, None), ({"fused": True}, True, None), ({"foreach": True}, None, True), ({"fused": False}, False, None)],
)
def test_adamw_runs_as_requested(settings: dict[str, Any], fused: bool | None, foreach: bool | None) -> None:
    optimizer = optimizer_of(Train(**settings), net(), UNITS)
    assert isinstance(optimizer, AdamW)
    assert (optimizer.defaults["fused"], optimizer.defaults["foreach"]) == (fused, foreach)


def test_two_implementations_at_once_are_refused() -> None:
    with pytest.raises(ValidationError, match="two implementations of AdamW"):
        Train(fused=True, foreach=True)


def plain(parameters: Any, lr: float, weight_decay: float) -> Optimizer:
    return SGD(parameters, lr=lr, weight_decay=weight_decay, momentum=0.9)


def nothing(_parameters: Any, **_settings: float) -> str:
    return "no optimizer"


def test_your_own_gets_all_parameters_and_the_settings() -> None:
    model = net()
    optimizer = optimizer_of(Train(optimizer=f"{__name__}:plain", learning_rate=0.5), model, UNITS)
    assert isinstance(optimizer, SGD)
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert len(optimizer.param_groups[0]["params"]) == len(list(model.parameters()))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no_such_module:Class", "No module named 'no_such_module'"),
        ("torch.optim:NoSuch", "has no attribute 'NoSuch'"),
        ("torch.optim:Muon", "only supports 2D"),
        (f"{__name__}:nothing", "made a str, not a torch.optim.Optimizer"),
    ],
)
def test_what_is_no_optimizer_is_said(name: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        optimizer_of(Train(optimizer=name), net(), UNITS)


@pytest.mark.parametrize("name", ["adam", "muon ", "a.b", ":x", "x:", "a b:c"])
def test_a_name_that_says_nothing_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="choose adamw, muon, none, or your own"):
        Train(optimizer=name)


@pytest.mark.parametrize(
    ("settings", "device", "fused"),
    [
        ({}, "cuda", True),
        ({}, "cpu", None),
        ({"fused": False}, "cuda", False),
        ({"foreach": True}, "cuda", None),
        ({"offload": "optimizer"}, "cuda", None),
    ],
)
def test_adamw_is_fused_on_a_gpu_by_default(settings: dict[str, Any], device: str, fused: bool | None) -> None:
    optimizer = optimizer_of(Train(**settings), net(), UNITS, device)
    assert optimizer.defaults["fused"] is fused
    assert optimizer.defaults["foreach"] is settings.get("foreach")
    both = optimizer_of(Train(optimizer="muon", **settings), net(), UNITS, device)
    assert isinstance(both, Together)
    assert both.param_groups[-1]["fused"] is fused


def test_a_fused_optimizer_fails_with_the_scaler_of_fsdp1() -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    try:
        model = nn.Linear(2, 2)
        scaler, optimizer = ShardedGradScaler(device="cpu"), AdamW(model.parameters(), fused=True)
        scaler.scale(model(torch.ones(2)).sum()).backward()
        scaler.unscale_(optimizer)  # to clip
        with pytest.raises(RuntimeError, match="broadcast shape"):
            scaler.step(optimizer)
    finally:
        dist.destroy_process_group()
    assert forbids(cell("fsdp", mixed_precision="fp16", train=Train(fused=True)), "cpu")
    assert not forbids(cell("fsdp2", mixed_precision="fp16", train=Train(fused=True)), "cpu")


def test_complex_parameters_are_not_stepped_by_a_fused_kernel() -> None:
    model = nn.ParameterList([nn.Parameter(torch.ones(4, dtype=torch.complex64)), nn.Parameter(torch.ones(4))])
    assert optimizer_of(Train(), model, (), "cuda").defaults["fused"] is None
    assert optimizer_of(Train(), net(), (), "cuda").defaults["fused"] is True
