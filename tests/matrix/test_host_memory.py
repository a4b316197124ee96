"""Launches that the memory of the host cannot hold."""

import pytest
from examples import cell

from bench import workloads
from bench.errors import InputError
from bench.matrix.host_memory import refuse_what_cannot_fit
from bench.records.base import Device
from bench.records.cell import Train
from bench.records.plan import CellPlan

POLICY = workloads.load("pi07")
PARAMETERS = sum(POLICY.parameter_counts(POLICY.Config()).values())

LOW = Train(weights="bf16")


def plan(backend: str, ranks: int = 2, **changes: object) -> CellPlan:
    return CellPlan(cell=cell(backend, options={}, num_processes=ranks, **changes), batches=(1,), axes={})


@pytest.mark.parametrize(
    ("backend", "device", "precision", "bytes_per_parameter"),
    [("fsdp", "cuda", "bf16", 4), ("ddp", "cuda", "bf16", 2), ("ddp", "cuda", "no", 4), ("ddp", "cpu", "bf16", 4)],
)
def test_the_weights_of_all_ranks_must_fit(
    backend: str, device: Device, precision: str, bytes_per_parameter: int
) -> None:
    plans = [plan(backend, 8, workload="toy_workloads:Counted", mixed_precision=precision, train=LOW)]
    needed = 8 * bytes_per_parameter * 10**9
    refuse_what_cannot_fit(plans, device, needed)
    with pytest.raises(InputError, match=rf"{backend}: 8 ranks build a model of [\d.]+ billion [\s\S]*--force"):
        refuse_what_cannot_fit(plans, device, needed - 1)


@pytest.mark.parametrize(("backend", "replicas", "shares"), [("ddp", 1, 1), ("fsdp2", 1, 8), ("fsdp2", 2, 4)])
def test_weights_that_are_drawn_in_place_take_only_what_a_rank_keeps(backend: str, replicas: int, shares: int) -> None:
    plans = [plan(backend, 8, train=Train(dp_replicate_size=replicas))]
    refuse_what_cannot_fit(plans, "cuda", 0)
    needed = 8 * (4 * PARAMETERS // shares)
    refuse_what_cannot_fit(plans, "cpu", needed)
    with pytest.raises(InputError):
        refuse_what_cannot_fit(plans, "cpu", needed - 1)


def test_a_workload_that_does_not_say_how_large_it_is_is_not_refused() -> None:
    refuse_what_cannot_fit([plan("ddp", 64, workload="toy_workloads:Toy")], "cpu", 2**20)
