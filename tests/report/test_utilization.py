"""MFU, HFU and tokens a second against figures computed by hand."""

import re

import pytest
from examples import CUDA_MACHINE, ok, result

from bench.records.devices import GPUS, peak_rate
from bench.records.machine import Machine
from bench.records.outcome import Ok
from bench.records.rank_outcome import Work
from bench.report.summary import summarize
from bench.report.tables.utilization import utilization_table
from bench.report.utilization import Utilization, utilization

A100 = "NVIDIA A100-SXM4-80GB"
WORK = Work(step_flops=400 * 10**9, recomputed_flops=88 * 10**9, tokens_per_sample=50)


def machine(*accelerators: str) -> Machine:
    return CUDA_MACHINE.model_copy(update={"accelerators": accelerators})


def used(work: Work | None, *accelerators: str, precision: str = "bf16") -> Utilization | None:
    """Two ranks, batch 2, steps of 0.1 s: 40 samples/s, 20 of each rank."""
    ranks = tuple(one.model_copy(update={"work": work}) for one in ok().ranks)
    outcome = result(Ok(ranks=ranks), batch=2, machine=machine(*accelerators))
    attempt = outcome.attempt
    cell_ = attempt.cell.model_copy(update={"mixed_precision": precision})
    outcome = outcome.model_copy(update={"attempt": attempt.model_copy(update={"cell": cell_})})
    (cell,) = summarize([outcome]).cells
    return utilization(cell, cell.rows[0])


def test_mfu_of_an_example_computed_by_hand() -> None:
    one = used(WORK, A100, A100)
    assert one is not None
    # 20 samples/s x 312 GFLOP = 6.24 TFLOP/s of 312 TFLOP/s; with recomputation 20 x 400 GFLOP = 8 TFLOP/s.
    assert one.model_flops_per_s_per_rank == pytest.approx(6.24e12, rel=1e-12)
    assert one.mfu == pytest.approx(0.02, rel=1e-12)
    assert one.hfu == pytest.approx(8 / 312, rel=1e-12)
    assert one.recomputed_share == 0.22
    assert one.tokens_per_s_global == pytest.approx(2000, rel=1e-12)


def test_the_table_shows_them() -> None:
    ranks = tuple(one.model_copy(update={"work": WORK}) for one in ok().ranks)
    table = utilization_table(summarize([result(Ok(ranks=ranks), batch=2, machine=machine(A100, A100))]))
    assert table.rows == (("ddp, batch 2", "2000", "6.24", "8", "312", "2.0 %", "2.6 %"),)
    assert utilization_table(summarize([result(ok())])).rows == ()


@pytest.mark.parametrize(
    "devices",
    [(), ("Example GPU",), (A100, "NVIDIA H100 PCIe"), ("NVIDIA A100-SXM4-80GB MIG 1g.10gb",), ("NVIDIA A10G",)],
)
def test_an_unknown_device_has_no_mfu(devices: tuple[str, ...]) -> None:
    one = used(WORK, *devices)
    assert one is not None
    assert (one.mfu, one.hfu) == (None, None)
    assert one.model_flops_per_s_per_rank is not None


def test_a_workload_may_state_only_a_part() -> None:
    assert used(None, A100) is None
    tokens = used(Work(tokens_per_sample=3), A100)
    assert tokens is not None
    assert (tokens.tokens_per_s_global, tokens.mfu, tokens.recomputed_share) == (pytest.approx(120), None, None)


def test_the_peak_is_that_of_the_precision() -> None:
    fp32 = used(WORK, A100, precision="no")
    assert fp32 is not None
    assert fp32.peak_flops_per_s == 19.5e12
    assert peak_rate("Tesla V100-SXM2-16GB", "bf16") is None  # no bf16 there
    assert peak_rate("Tesla V100-SXM2-16GB", "no") == 15.7e12


@pytest.mark.parametrize(
    ("name", "tera"),
    [
        ("NVIDIA A100 80GB PCIe", 312),
        ("NVIDIA H100 80GB HBM3", 989.5),
        ("NVIDIA H100 PCIe", 756.5),
        ("NVIDIA H200", 989.5),
        ("NVIDIA B200", 2250),
        ("NVIDIA L4", 121),
        ("NVIDIA L40S", 362.05),
        ("NVIDIA A10", 125),
        ("NVIDIA GeForce RTX 4090", 165.2),
    ],
)
def test_names_of_drivers(name: str, tera: float) -> None:
    assert peak_rate(name, "bf16") == tera * 1e12
    assert [rates.name for rates in GPUS.values() if re.fullmatch(rates.name, name)] != []
    assert sum(re.fullmatch(rates.name, name) is not None for rates in GPUS.values()) == 1


def test_every_peak_has_a_source() -> None:
    assert all("NVIDIA" in rates.source for rates in GPUS.values())
