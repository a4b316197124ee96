"""Theory: every formula against a figure computed by hand, or taken from the paper."""

from typing import Any

import pytest
from examples import CUDA_MACHINE, ok, regime, result, rss, vram

from bench.records.cell import Regime
from bench.records.outcome import Oom, Reported
from bench.report.summary import summarize
from bench.report.tables.theory import theory as theory_table
from bench.report.theory import gathers, recomputed_share, sent_bytes, state, without_batch

GB = 10**9
FP32_SHARDS = {"weights_dtype": "float32", "distributed_type": "FSDP"}


def world(sharding: str, ranks: int = 8, parameters: int = 8 * GB, **changes: Any) -> Regime:
    known = FP32_SHARDS if sharding in ("FULL_SHARD", "SHARD_GRAD_OP", "fully_shard") else {}
    fields = {"sharding": sharding, "world_size": ranks, "parameters": parameters}
    return regime().model_copy(update={**known, **fields, **changes})


@pytest.mark.parametrize(("sharding", "gb"), [("none", 120), ("zero1", 31.4), ("zero2", 16.6), ("zero3", 1.9)])
def test_the_figure_of_the_zero_paper(sharding: str, gb: float) -> None:
    """arXiv:1910.02054, figure 1: 7.5 B parameters, 64 ranks, K = 12."""
    assert state(world(sharding, 64, 7_500_000_000)).total / GB == pytest.approx(gb, abs=0.05)


@pytest.mark.parametrize(
    ("sharding", "parts"),
    [
        ("none", (16, 16, 32, 64)),
        ("NO_SHARD", (16, 16, 32, 64)),
        ("zero1", (16, 16, 4, 8)),
        ("zero2", (16, 2, 4, 8)),
        ("zero3", (2, 2, 4, 8)),
        ("FULL_SHARD", (4, 4, 0, 8)),
        ("SHARD_GRAD_OP", (4, 4, 0, 8)),
        ("fully_shard", (4, 4, 0, 8)),
    ],
)
def test_state_of_8_billion_parameters_on_8_ranks(sharding: str, parts: tuple[float, ...]) -> None:
    found = state(world(sharding))
    assert (found.weights, found.gradients, found.masters, found.moments) == tuple(part * GB for part in parts)
    assert found.total == sum(parts) * GB


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"weights_dtype": "float32"}, (32, 32, 0, 64)),  # no mixed precision: the weights are stepped themselves
        ({"masters_dtype": "bfloat16", "optimizer_dtype": "bfloat16"}, (16, 16, 0, 32)),  # without masters
        ({"masters_dtype": None, "optimizer_dtype": None}, (16, 16, 0, 0)),  # forward and backward only
    ],
)
def test_other_regimes(changes: dict[str, Any], parts: tuple[float, ...]) -> None:
    found = state(world("none", **changes))
    assert (found.weights, found.gradients, found.masters, found.moments) == tuple(part * GB for part in parts)


def test_deepspeed_keeps_masters_of_fp32_weights_too() -> None:
    found = state(world("zero2", weights_dtype="float32"))
    assert (found.weights, found.gradients, found.masters, found.moments) == (32 * GB, 4 * GB, 4 * GB, 8 * GB)


@pytest.mark.parametrize(
    ("sharding", "changes", "passes", "gb"),
    [
        ("none", {}, 1, 28),  # all-reduce of 16 GB: 2 x 16 x 7/8
        ("none", {}, 2, 28),
        ("zero1", {}, 1, 28),
        ("zero2", {}, 1, 28),
        ("zero3", {}, 1, 42),  # the paper's 3 volumes
        ("zero3", {}, 2, 70),
        ("FULL_SHARD", {}, 1, 42),
        ("FULL_SHARD", {}, 2, 56),  # reduce-scatter and three gathers of 14 GB
        ("SHARD_GRAD_OP", {}, 2, 28),
        ("fully_shard", {"reduction_dtype": "float32"}, 1, 56),  # reduced in fp32: 28 GB
        ("fully_shard", {"reduction_dtype": "float32"}, 2, 84),
    ],
)
def test_bytes_sent_by_8_billion_parameters_on_8_ranks(
    sharding: str, changes: dict[str, Any], passes: int, gb: float
) -> None:
    assert sent_bytes(world(sharding, **changes), passes, computed_in_bytes=2) == gb * GB


def test_one_rank_sends_nothing() -> None:
    assert sent_bytes(world("none", 1, reduction_dtype=None), 2, computed_in_bytes=2) == 0


@pytest.mark.parametrize(
    ("sharding", "once", "twice"),
    [("FULL_SHARD", 2, 3), ("SHARD_GRAD_OP", 1, 1), ("fully_shard", 2, 4), ("zero3", 2, 4), ("zero2", 0, 0)],
)
def test_gathers(sharding: str, once: int, twice: int) -> None:
    assert (gathers(sharding, 1), gathers(sharding, 2)) == (once, twice)


def test_recomputation_is_one_part_in_four() -> None:
    assert recomputed_share(True) == 1 / (1 + 2 + 1)
    assert recomputed_share(False) == 0


def test_a_peak_that_shrinks_as_the_batch_grows_says_nothing_of_the_state() -> None:
    results = [result(ok(memory=vram(peak, 60)), batch=batch) for batch, peak in ((1, 17.0), (2, 16.3))]
    (cell,) = summarize(results).cells
    assert without_batch(cell) is None


def test_the_peak_without_the_batch_is_on_the_line_through_the_two_smallest() -> None:
    results = [
        result(ok(memory=vram(peak, 60)), batch=batch, machine=CUDA_MACHINE)
        for batch, peak in ((2, 14.0), (4, 18.0), (8, 50.0))
    ]
    (cell,) = summarize(results).cells
    peak = without_batch(cell)
    assert peak is not None
    assert (peak.allocated, peak.batches) == (10 * 2**30, (2, 4))
    (alone,) = summarize(results[:1]).cells
    assert without_batch(alone) == (14 * 2**30, (2,))


def test_prediction_stands_beside_measurement() -> None:
    results = [
        result(ok(backend="fsdp", memory=vram(14, 20)), backend="fsdp", axes={"grad_ckpt": True}, machine=CUDA_MACHINE),
        result(Oom(rank=0, phase="bwd", reason="x"), backend="zero2", axes={"grad_ckpt": False}, machine=CUDA_MACHINE),
    ]
    table = theory_table(summarize(results))
    # 1000 parameters on two ranks: 2000 + 2000 + 0 + 4000 bytes; sent: (1 + 3 gathers) of 2000 bytes x 1/2.
    assert table.rows[0] == (
        "fsdp, grad_ckpt on", "1,000", "1.95 KiB", "1.95 KiB", "0 B", "3.91 KiB", "7.81 KiB", "14.0 GiB", "14.0 GiB",
        "3.91 KiB", "25.0 %", "2",
    )  # fmt: skip
    assert table.rows[1] == ("zero2, grad_ckpt off", *["n/a"] * 9, "0.0 %", "n/a")
    assert "data segment" not in " ".join(table.notes)


def test_a_cpu_says_what_its_figure_is() -> None:
    table = theory_table(summarize([result(ok(memory=rss(1)))]))
    assert table.rows[0][7] == "512 MiB"
    assert "data segment" in " ".join(table.notes)


def test_imported_figures_have_no_theory() -> None:
    outcome = Reported(source="x", step_time_s_per_rank=(1.0,), peak_allocated_bytes=GB)
    assert theory_table(summarize([result(outcome)])).rows == ()
    both = theory_table(summarize([result(outcome, backend="fsdp"), result(ok(memory=rss(1)))]))
    assert both.rows[0] == ("fsdp", *["n/a"] * 11)
    assert both.rows[1][0] == "ddp"
