"""Observed dtypes in the tables: of matrix products, and of reductions where compared rows differ in them."""

from typing import Any

from examples import ok, rendered, result

from bench.records.outcome import Ok, Result
from bench.report.compare import compare_runs
from bench.report.speedup import compare_axis
from bench.report.summary import summarize
from bench.report.tables.regimes import regimes
from bench.report.tables.speedup import faster


def of(backend: str, **observed: Any) -> Result:
    ranks = ok(backend=backend).ranks
    changed = [rank.model_copy(update={"regime": rank.regime.model_copy(update=observed)}) for rank in ranks]
    return result(Ok(ranks=tuple(changed)), backend=backend)


def reduced(*results: Result) -> list[str]:
    """The cells of the column of reductions."""
    table = faster(summarize(results), compare_axis(summarize(results)))
    return [row[table.headers.index("reduction")] for row in table.rows] if "reduction" in table.headers else []


def test_a_reduction_in_another_dtype_stands_in_the_row() -> None:
    assert reduced(of("ddp"), of("fsdp")) == []
    assert reduced(of("ddp"), of("fsdp", reduction_dtype="float32")) == ["bfloat16 (A), float32 (B)"] * 2
    assert "reduction: dtype in which gradients are communicated" in rendered(
        [of("ddp"), of("fsdp", reduction_dtype="float32")]
    )


def test_the_products_have_a_column_once_they_are_known() -> None:
    assert "matmuls" not in str(regimes(summarize([of("ddp")])))
    shares = {"bfloat16": 0.75, "float32": 0.245, "float64": 0.005}
    table = str(regimes(summarize([of("ddp", matmul_shares=shares), of("fsdp")])))
    assert "matmuls" in table
    assert "bfloat16 + float32" in table
    assert "float64" not in table


def test_the_kernels_of_attention_have_a_column_once_they_are_known() -> None:
    assert "attention kernels" not in str(regimes(summarize([of("ddp")])))
    table = str(regimes(summarize([of("ddp", attention_kernels=("efficient with a mask", "flash"))])))
    assert "attention kernels" in table
    assert "efficient with a mask, flash" in table


def test_how_adam_stepped_has_a_column_once_it_is_known() -> None:
    assert "Adam" not in str(regimes(summarize([of("ddp")])))
    assert "fused" in str(regimes(summarize([of("ddp", adam="fused")])))
    assert compare_runs([of("ddp", adam="fused")], [of("ddp", adam="foreach")]).unlike == (
        "adam: fused against foreach",
    )


def test_other_kernels_of_attention_are_named_when_runs_are_compared() -> None:
    flash, math = of("ddp", attention_kernels=("flash",)), of("ddp", attention_kernels=("math",))
    assert compare_runs([of("ddp")], [flash]).unlike == ()  # not observed on one side
    assert compare_runs([flash], [math]).unlike == ("attention_kernels: flash against math",)


def test_results_whose_products_were_not_observed_are_alike() -> None:
    now, other = of("ddp", matmul_shares={"bfloat16": 1.0}), of("ddp", matmul_shares={"float32": 1.0})
    assert compare_runs([of("ddp")], [now]).unlike == ()
    assert compare_runs([of("ddp", matmul_shares={"bfloat16": 0.9, "float32": 0.1})], [now]).unlike == ()
    assert compare_runs([now], [other]).unlike == ("matmul_dtype: bfloat16 against float32",)


def test_another_offload_is_named_when_runs_are_compared() -> None:
    here, host = (of("fsdp", offload=offload) for offload in ("none", "params"))
    assert compare_runs([here], [host]).unlike == ("offload: none against params",)


def test_options_of_sharding_have_a_column_where_they_are_not_the_usual_ones() -> None:
    usual = of("fsdp", mesh={"pp": 1, "dp": 2, "tp": 1}, reshard_after_forward=True, offload="none")
    zero3 = of("zero2", sharding="zero3", overlap_comm=True, offload="none")
    assert "options" not in regimes(summarize([usual, zero3, of("ddp")])).headers
    hybrid = {"mesh": {"pp": 1, "dp_replicate": 2, "dp_shard": 1, "tp": 1}, "reshard_after_forward": False}
    table = regimes(
        summarize([of("fsdp", **hybrid), of("zero2", sharding="zero2", overlap_comm=True, offload="optimizer")])
    )
    options = [row[table.headers.index("options")] for row in table.rows]
    assert options == [
        "pp 1 x dp_replicate 2 x dp_shard 1 x tp 1, reshard_after_forward false",
        "offload optimizer, overlap_comm true",
    ]


def test_zero_that_reduces_after_backward_says_so() -> None:
    """By default; beside FSDP, which reduces while backward runs."""
    table = regimes(summarize([of("zero2", sharding="zero2", overlap_comm=False, offload="none")]))
    assert [row[table.headers.index("options")] for row in table.rows] == ["overlap_comm false"]
