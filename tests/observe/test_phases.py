"""The phases of observed steps: each sleep counts where it is, and all phases sum to the step."""

import time
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from bench.observe.device import Cpu
from bench.observe.phases import Phases
from bench.records.phases import SEEN_PHASES

STEPS, NAP_S = 2, 0.02


class Slow(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(NAP_S)
        return super().forward(x)


@pytest.fixture
def model() -> nn.Module:
    return Slow(4, 4)


@pytest.fixture
def phases(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> Iterator[Phases]:
    monkeypatch.setattr(torch.autograd, "backward", torch.autograd.backward)  # put back afterwards
    one = Phases(Cpu(), model, STEPS)
    yield one
    one._waits.__exit__(None, None, None)


def checked(phases: Phases) -> dict[str, list[float]]:
    record = phases.record()
    assert record["own_work_s"] == {}  # of one process
    times_s: dict[str, list[float]] = record["phase_times_s"]
    assert set(times_s) <= {*SEEN_PHASES, "total"}
    for step in range(STEPS):
        parts_s = sum(each[step] for name, each in times_s.items() if name != "total")
        assert parts_s == pytest.approx(times_s["total"][step])
    return times_s


def test_each_phase_holds_its_own_time_and_the_rest_what_is_in_none(phases: Phases, model: nn.Module) -> None:
    while not phases.complete:
        with phases.within("dataload_wait"):
            time.sleep(NAP_S)
        for _ in range(2):  # micro-batches
            loss = model(torch.ones(2, 4)).sum()
            time.sleep(NAP_S)  # the loss counts in forward
            loss.backward()
        time.sleep(2 * NAP_S)
        with phases.within("optim_step"):
            time.sleep(NAP_S)
        phases.step_ended()
    times_s = checked(phases)
    least = {"dataload_wait": 1, "forward": 4, "bwd": 0, "optim_step": 1, "rest": 2}
    assert {name for name, naps in least.items() if min(times_s[name]) < naps * NAP_S} == set()


def test_an_optimizer_that_calls_the_model_holds_neither_forward_nor_backward(phases: Phases, model: nn.Module) -> None:
    while not phases.complete:
        with phases.within("optim_step"):
            model(torch.ones(2, 4)).sum().backward()
            time.sleep(NAP_S)
        phases.step_ended()
    times_s = checked(phases)
    assert min(times_s["forward"]) >= NAP_S
    assert min(times_s["optim_step"]) >= NAP_S
    assert "dataload_wait" not in times_s


def test_an_optimizer_in_backward_counts_for_itself(phases: Phases, model: nn.Module) -> None:
    def step(_: torch.Tensor) -> None:
        with phases.within("optim_step"):
            time.sleep(NAP_S)
        if model.weight.grad is not None and model.bias.grad is not None:
            phases.step_ended()
            model.zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    while not phases.complete:
        model(torch.ones(2, 4)).sum().backward()
    assert min(checked(phases)["optim_step"]) >= 2 * NAP_S
