"""Theory of memory: every formula against a figure computed by hand, or taken from the paper."""

import re
from dataclasses import replace
from typing import Any

import pytest
from examples import CUDA_MACHINE, cell, ok, rank, regime, result, rss, vram

from bench.records.cell import Regime, Train
from bench.records.devices import GPUS, peak_rate
from bench.records.machine import Machine
from bench.records.observed import Observed
from bench.records.outcome import Ok, Oom, Reported
from bench.records.rank_outcome import Tokens, Work
from bench.report.formulas import State, StepFormulas
from bench.report.summary import summarize
from bench.report.tables.theory import theory as theory_table
from bench.report.tables.theory import utilization_table
from bench.report.theory import Utilization, theory_of, utilization, without_batch

GB = 10**9
FP32_SHARDS = {"weights_dtype": "float32", "distributed_type": "FSDP"}


def world(sharding: str, ranks: int = 8, parameters: int = 8 * GB, **changes: Any) -> Regime:
    known = FP32_SHARDS if sharding in ("FULL_SHARD", "SHARD_GRAD_OP", "fully_shard") else {}
    trained = changes.get("trained_parameters", parameters)
    fields = {"sharding": sharding, "world_size": ranks, "parameters": parameters, "trained_parameters": trained}
    return regime().model_copy(update={**known, **fields, "gradient_parameters": trained, **changes})


def state(regime: Regime) -> State:
    return StepFormulas(cell(), 1, regime).state()


def parts_of(found: State) -> tuple[float, ...]:
    return found.weights, found.gradients, found.buckets, found.masters, found.moments


@pytest.mark.parametrize(("sharding", "gb"), [("none", 120), ("zero1", 31.4), ("zero2", 16.6), ("zero3", 1.9)])
def test_the_figure_of_the_zero_paper(sharding: str, gb: float) -> None:
    """arXiv:1910.02054, figure 1: 7.5 B parameters, 64 ranks, K = 12; without DDP's buckets."""
    of_64 = state(world(sharding, 64, 7_500_000_000))
    assert (of_64.total - of_64.buckets) / GB == pytest.approx(gb, abs=0.05)


def test_with_hybrid_sharding_fewer_ranks_share_a_model() -> None:
    hybrid = {"mesh": {"pp": 1, "dp_replicate": 2, "dp_shard": 4, "tp": 1}}
    assert state(world("fully_shard", 8, **hybrid)) == state(world("fully_shard", 4))


@pytest.mark.parametrize(("ranks", "bytes_each"), [(1, 16), (8, 20)])
def test_under_autocast_the_weights_are_the_masters(ranks: int, bytes_each: int) -> None:
    found = state(world("none", ranks, GB, weights_dtype="float32", reduction_dtype="float32"))
    assert (found.total, found.masters) == (bytes_each * GB, 0)


def test_ddp_keeps_one_more_copy_of_its_gradients() -> None:
    assert state(world("none")).buckets == state(world("none")).gradients == 16 * GB
    assert state(world("none", ranks=1)).buckets == 0  # one process has no DDP
    assert {state(world(kind)).buckets for kind in ("NO_SHARD", "zero1", "zero2", "zero3", "FULL_SHARD")} == {0}


@pytest.mark.parametrize(
    ("sharding", "parts"),
    [
        ("none", (16, 16, 16, 32, 64)),
        ("NO_SHARD", (16, 16, 0, 32, 64)),
        ("zero1", (16, 16, 0, 4, 8)),
        ("zero2", (16, 2, 0, 4, 8)),
        ("zero3", (2, 2, 0, 4, 8)),
        ("FULL_SHARD", (4, 4, 0, 0, 8)),
        ("SHARD_GRAD_OP", (4, 4, 0, 0, 8)),
        ("fully_shard", (4, 4, 0, 0, 8)),
    ],
)
def test_state_of_8_billion_parameters_on_8_ranks(sharding: str, parts: tuple[float, ...]) -> None:
    found = state(world(sharding))
    assert parts_of(found) == tuple(part * GB for part in parts)
    assert found.total == sum(parts) * GB


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"weights_dtype": "float32"}, (32, 32, 32, 0, 64)),  # no mixed precision: the weights are stepped themselves
        ({"masters_dtype": "bfloat16", "optimizer_dtype": "bfloat16"}, (16, 16, 16, 0, 32)),  # without masters
        ({"masters_dtype": None, "optimizer_dtype": None}, (16, 16, 16, 0, 0)),  # forward and backward only
    ],
)
def test_other_regimes(changes: dict[str, Any], parts: tuple[float, ...]) -> None:
    found = state(world("none", **changes))
    assert parts_of(found) == tuple(part * GB for part in parts)


def test_deepspeed_keeps_masters_of_fp32_weights_too() -> None:
    found = state(world("zero2", weights_dtype="float32"))
    assert parts_of(found) == (32 * GB, 4 * GB, 0, 4 * GB, 8 * GB)


FLAT, UNEVEN = {"gradient_parameters": 6 * GB, "trained_on_rank": GB}, {"trained_on_rank": GB // 2}


@pytest.mark.parametrize(
    ("sharding", "changes", "parts"),
    [
        ("none", {}, (16, 4, 4, 8, 16)),  # 2 P, 2 T, 2 T, 4 T, 8 T of P = 8 and T = 2 billion
        ("zero1", {}, (16, 4, 0, 1, 2)),
        ("zero2", {}, (16, 0.5, 0, 1, 2)),
        ("zero3", {}, (2, 0.5, 0, 1, 2)),
        ("FULL_SHARD", FLAT, (4, 3, 0, 0, 8)),  # gradients of whole flat parameters; one rank holds half of what trains
        ("fully_shard", {}, (4, 1, 0, 0, 2)),
        ("fully_shard", UNEVEN, (4, 1, 0, 0, 4)),
        ("zero2", {"frozen_dtype": "uint8"}, (10, 0.5, 0, 1, 2)),  # a byte for each of 6 billion quantized weights
        ("none", {"weights_dtype": "float32", "frozen_dtype": "bfloat16"}, (20, 8, 8, 0, 16)),
    ],
)
def test_frozen_weights_have_no_state(sharding: str, changes: dict[str, Any], parts: tuple[float, ...]) -> None:
    found = state(world(sharding, trained_parameters=2 * GB, **changes))
    assert parts_of(found) == tuple(part * GB for part in parts)


def test_the_optimizer_passes_only_what_is_trained() -> None:
    regime = world("none", trained_parameters=2 * GB)
    assert state(regime).stepped == 8 * GB  # masters
    assert state(regime.model_copy(update={"weights_dtype": "float32"})).stepped == 8 * GB  # of 32 GB of weights


def test_the_rank_that_holds_most_of_what_is_trained_is_shown() -> None:
    """FSDP1 may cut flat parameters so that a rank has nothing to step."""
    parts = {"trained_parameters": 100, "gradient_parameters": 600}
    none, some = {"trained_on_rank": 0, "optimizer_dtype": None}, {"trained_on_rank": 100}
    ranks = tuple(
        one.model_copy(update={"regime": one.regime.model_copy(update={**parts, **here})})
        for one, here in zip(ok(backend="fsdp").ranks, (none, some), strict=True)
    )
    table = theory_table(summarize([result(Ok(ranks=ranks), backend="fsdp")]))
    assert table.rows[0][1:8] == ("1,000 (100 trained)", "1.95 KiB", "1.17 KiB", "0 B", "0 B", "800 B", "3.91 KiB")


@pytest.mark.parametrize("dtype", ["bfloat16+float32", "int4"])
def test_frozen_weights_of_unknown_size_have_no_theory(dtype: str) -> None:
    ranks = tuple(
        one.model_copy(update={"regime": one.regime.model_copy(update={"frozen_dtype": dtype})}) for one in ok().ranks
    )
    assert theory_table(summarize([result(Ok(ranks=ranks))])).rows == ()


def test_a_peak_that_shrinks_as_the_batch_grows_says_nothing_of_the_state() -> None:
    results = [result(ok(memory=vram(peak, 60)), batch=batch) for batch, peak in ((1, 17.0), (2, 16.3))]
    (cell,) = summarize(results).cells
    assert without_batch(cell) is None


@pytest.mark.parametrize(("small", "large"), [(18.0, 14.0), (4.0, 14.0)])
def test_a_line_that_noise_bends_too_far_gives_no_peak(small: float, large: float) -> None:
    """Above every measured peak, or below zero."""
    results = [
        result(ok(memory=vram(peak, 60)), batch=batch, machine=CUDA_MACHINE) for batch, peak in ((2, small), (4, large))
    ]
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


def test_state_and_peak_are_of_batches_that_hold_gradients_as_the_best_one_does() -> None:
    """With a global batch of 16 on two ranks, batch 8 does not accumulate, and FSDP shards its gradients at once."""
    results = [
        result(
            ok(*((step_s,) * 3,) * 2, backend="fsdp", memory=vram(peak, 60)),
            backend="fsdp", batch=batch, machine=CUDA_MACHINE, train={"global_batch": 16}, mixed_precision="no",
        )
        for batch, peak, step_s in ((2, 14.0, 0.4), (4, 18.0, 0.3), (8, 20.0, 0.1))
    ]  # fmt: skip
    (cell,) = summarize(results).cells
    assert without_batch(cell) == (20 * 2**30, (8,))
    assert theory_of(cell) == replace(theory_of(summarize(results[-1:]).cells[0]), cell=cell)
    (accumulating,) = summarize(results[:2]).cells
    assert without_batch(accumulating) == (10 * 2**30, (2, 4))
    held = [found.gradients for each in (accumulating, cell) if (found := theory_of(each).state)]
    assert held == [4000, 2000]  # whole ones, and shards


def test_prediction_stands_beside_measurement() -> None:
    results = [
        result(ok(backend="fsdp", memory=vram(14, 20)), backend="fsdp", machine=CUDA_MACHINE),
        result(Oom(rank=0, phase="bwd", reason="x"), backend="zero2", machine=CUDA_MACHINE),
    ]
    table = theory_table(summarize(results))
    # 1000 parameters on two ranks: 2000 + 2000 + 0 + 4000 bytes.
    assert table.rows[0] == (
        "fsdp", "1,000", "1.95 KiB", "1.95 KiB", "0 B", "0 B", "3.91 KiB", "7.81 KiB", "14.0 GiB", "14.0 GiB", "n/a",
        "2",
    )  # fmt: skip
    assert table.rows[1] == ("zero2", *["n/a"] * 11)
    assert "data segment" not in " ".join(table.notes)


def test_the_recomputed_share_is_the_workloads_own() -> None:
    work = Work(step_flops=1000, recomputed_flops=210)
    ranks = tuple(one.model_copy(update={"work": work}) for one in ok().ranks)
    table = theory_table(summarize([result(Ok(ranks=ranks))]))
    assert table.rows[0][table.headers.index("recomputed")] == "21.0 %"


def test_a_cpu_says_what_its_figure_is() -> None:
    table = theory_table(summarize([result(ok(memory=rss(1)))]))
    assert table.rows[0][8] == "512 MiB"
    assert "data segment" in " ".join(table.notes)


def test_state_on_the_host_has_no_theory() -> None:
    ranks = tuple(
        one.model_copy(update={"regime": one.regime.model_copy(update={"offload": "optimizer"})}) for one in ok().ranks
    )
    table = theory_table(summarize([result(Ok(ranks=ranks))]))
    assert set(table.rows[0][2:8]) == {"n/a"}


@pytest.mark.parametrize("optimizer", ["muon", "torch.optim:SGD"])
def test_other_optimizers_have_no_theory_of_state(optimizer: str) -> None:
    """The formula is that of AdamW's two moments."""
    table = theory_table(summarize([result(ok(), train=Train(optimizer=optimizer))]))
    assert set(table.rows[0][2:8]) == {"n/a"}
    assert table.rows[0][8] != "n/a"


def test_imported_figures_have_no_theory() -> None:
    outcome = Reported(source="x", step_time_s_per_rank=(1.0,), figures={"peak_allocated_bytes_rank_max": GB})
    assert theory_table(summarize([result(outcome)])).rows == ()
    both = theory_table(summarize([result(outcome, backend="fsdp"), result(ok(memory=rss(1)))]))
    assert both.rows[0] == ("fsdp", *["n/a"] * 11)
    assert both.rows[1][0] == "ddp"


# Utilization, against figures computed by hand


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
    assert one.tokens_per_s_global == pytest.approx(2000, rel=1e-12)


def test_float32_products_in_tf32_have_no_peak_to_compare_with() -> None:
    for products, peak in ((None, peak_rate(A100, "no")), ("tf32", None)):
        ranks = tuple(
            one.model_copy(
                update={"work": WORK, "regime": one.regime.model_copy(update={"float32_products": products})}
            )
            for one in ok().ranks
        )
        full = result(Ok(ranks=ranks), machine=machine(A100, A100), mixed_precision="no")
        (cell,) = summarize([full]).cells
        found = utilization(cell, cell.rows[0])
        assert found is not None
        assert found.peak_flops_per_s == peak


@pytest.mark.parametrize(
    ("optimizer", "known"), [("AdamW", True), ("FusedAdam", True), ("SGD", False), ("SGD, AdamW", False)]
)
def test_the_state_of_a_script_is_that_of_adam_if_it_steps_with_adam(optimizer: str, known: bool) -> None:
    ranks = tuple(one.model_copy(update={"observed": Observed(optimizer=optimizer)}) for one in ok().ranks)
    (cell,) = summarize([result(Ok(ranks=ranks))]).cells
    assert (theory_of(cell).state is not None) == known


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


def test_tokens_of_the_batches_count_in_place_of_what_the_workload_states() -> None:
    """40 samples/s, of 5 tokens on one rank and of 10 on the other; places for 8 and for 16 of each."""
    works = (Work(step_flops=300), Work(step_flops=600, recomputed_flops=100))
    tokens = [Tokens(samples=6, trained=(15, 5, 10), places=(16,) * 3), Tokens(samples=6, trained=(20,) * 3)]
    tokens[1] = tokens[1].model_copy(update={"places": (32,) * 3})
    ranks = tuple(
        one.model_copy(update={"work": work, "tokens": of_rank})
        for one, work, of_rank in zip(ok().ranks, works, tokens, strict=True)
    )
    summary = summarize([result(Ok(ranks=ranks), batch=2, machine=machine(A100, A100))])
    one = utilization(summary.cells[0], summary.rows[0])
    assert one is not None
    assert one.tokens_per_s_global == pytest.approx(40 * 7.5)
    assert one.padding_share == pytest.approx(((1 - 30 / 48) + (1 - 60 / 96)) / 2)
    assert (one.hardware_flops_per_s_per_rank, one.model_flops_per_s_per_rank) == pytest.approx((20 * 450, 20 * 400))
    table = utilization_table(summary)
    assert table.rows[0][:3] == ("ddp, batch 2", "300", "37.5 %")


def test_a_workload_may_state_only_a_part() -> None:
    assert used(None, A100) is None
    tokens = used(Work(tokens_per_sample=3), A100)
    assert tokens is not None
    assert (tokens.tokens_per_s_global, tokens.mfu) == (pytest.approx(120), None)


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
    assert all(re.search("datasheet|architecture", rates.source) for rates in GPUS.values())


@pytest.mark.parametrize(
    ("backend", "precision", "changes", "gradients"),
    [
        ("fsdp2", "bf16", {}, 4),
        ("fsdp", "bf16", {}, 2),
        ("fsdp", "fp16", {}, 2),
        ("fsdp", "no", {}, 4),
        ("fsdp_grad_op", "bf16", {}, 2),
        ("fsdp2", "bf16", {"accumulate_sync": "each"}, 4 / 8),
        ("fsdp2", "bf16", {"accumulate": 1}, 4 / 8),
        ("fsdp2", "bf16", {"accumulate": 1, "global_batch": 64}, 4),
        ("fsdp2", "bf16", {"accumulate": 1, "global_batch": 16}, 4 / 8),
        ("zero2", "bf16", {}, 2 / 8),
    ],
)
def test_fsdp_holds_whole_gradients_up_to_the_last_micro_batch(
    backend: str, precision: str, changes: dict[str, Any], gradients: float
) -> None:
    """Bytes a parameter on eight ranks, at batch 2."""
    kinds = {"fsdp": "FULL_SHARD", "fsdp_grad_op": "SHARD_GRAD_OP", "fsdp2": "fully_shard", "zero2": "zero2"}
    more = {"reduction_dtype": "float32"} if backend == "fsdp2" else {}
    ran = world(kinds[backend], 8, GB, **more)
    eight = tuple(rank(number).model_copy(update={"regime": ran}) for number in range(8))
    train = {"accumulate": 4, **changes}
    asked = result(Ok(ranks=eight), backend=backend, mixed_precision=precision, train=train)
    (cell,) = summarize([asked]).cells
    found = theory_of(cell).state
    assert found
    assert found.gradients == gradients * GB
