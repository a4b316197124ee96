"""Observed dtypes in the tables: of matrix products, and of reductions where compared rows differ in them."""

from typing import Any

import pytest
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
    return (
        [row[table.headers.index("gradients summed in")] for row in table.rows]
        if "gradients summed in" in table.headers
        else []
    )


def test_a_reduction_in_another_dtype_stands_in_the_row() -> None:
    assert reduced(of("ddp"), of("fsdp")) == []
    assert reduced(of("ddp"), of("fsdp", reduction_dtype="float32")) == ["bfloat16 (A), float32 (B)"] * 2
    assert "gradients summed in: the dtype in which ranks communicate them" in rendered(
        [of("ddp"), of("fsdp", reduction_dtype="float32")]
    )


@pytest.mark.parametrize(
    ("header", "observed", "shown"),
    [
        ("matmuls", {"matmul_shares": {"bfloat16": 0.75, "float32": 0.245, "float64": 0.005}}, "bfloat16 + float32"),
        (
            "attention kernels",
            {"attention_kernels": ("efficient with a mask", "flash")},
            "efficient with a mask, flash",
        ),
        ("Adam", {"adam": "fused"}, "fused"),
    ],
)
def test_what_a_step_showed_has_a_column_once_it_is_known(header: str, observed: dict[str, Any], shown: str) -> None:
    assert header not in regimes(summarize([of("ddp")])).headers
    table = regimes(summarize([of("ddp", **observed), of("fsdp")]))
    assert [row[table.headers.index(header)] for row in table.rows] == [shown, "n/a"]


MOSTLY_BF16 = {"matmul_shares": {"bfloat16": 0.9, "float32": 0.1}}


@pytest.mark.parametrize(
    ("base", "head", "unlike"),
    [
        ({"adam": "fused"}, {"adam": "foreach"}, ("adam: fused against foreach",)),
        (
            {"attention_kernels": ("flash",)},
            {"attention_kernels": ("math",)},
            ("attention_kernels: flash against math",),
        ),
        ({}, {"attention_kernels": ("flash",)}, ()),  # not observed on one side
        (MOSTLY_BF16, {"matmul_shares": {"float32": 1.0}}, ("matmul_dtype: bfloat16 against float32",)),
        (MOSTLY_BF16, {"matmul_shares": {"bfloat16": 1.0}}, ()),
        ({}, MOSTLY_BF16, ()),
        ({"offload": "none"}, {"offload": "params"}, ("offload: none against params",)),
    ],
)
def test_what_ran_otherwise_is_named_when_runs_are_compared(
    base: dict[str, Any], head: dict[str, Any], unlike: tuple[str, ...]
) -> None:
    assert compare_runs([of("ddp", **base)], [of("ddp", **head)]).unlike == unlike


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
