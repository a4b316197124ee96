"""Each backend's regime is broken on purpose; the result is rejected, and the message names both regimes. True regimes
pass."""

from collections.abc import Sequence

import pytest
import yaml
from harness import Bench

from bench.records.outcome import Failed, Ok, Result

BF16 = [
    ("single", "masters", "masters_dtype: requested float32, observed bfloat16"),
    ("ddp", "masters", "optimizer_dtype: requested float32, observed bfloat16"),
    ("fsdp", "settings", "sharding: requested FULL_SHARD, observed SHARD_GRAD_OP"),
    ("fsdp_grad_op", "settings", "sharding: requested SHARD_GRAD_OP, observed FULL_SHARD"),
    ("fsdp2", "reduction", "reduction_dtype: requested float32, observed bfloat16"),
    ("zero1", "settings", "sharding: requested zero1, observed zero2"),
    ("zero2", "settings", "sharding: requested zero2, observed zero1"),
    ("zero3", "settings", "sharding: requested zero3, observed zero2"),
    ("fsdp2", "fp32_units", "matmul_dtype: requested bfloat16, observed float32"),
    ("single", "fp32_forward", "matmul_dtype: requested bfloat16, observed float32"),
    ("ddp", "fp32_forward", "matmul_dtype: requested bfloat16, observed float32"),
    ("fsdp", "fp32_forward", "matmul_dtype: requested bfloat16, observed float32"),
    ("zero2", "fp32_forward", "matmul_dtype: requested bfloat16, observed float32"),
    ("ddp", "fp32_hook", "reduction_dtype: requested bfloat16, observed float32"),
    ("fsdp", "fp32_comm", "reduction_dtype: requested bfloat16, observed float32"),
    ("zero1", "fp32_comm", "reduction_dtype: requested bfloat16, observed float32"),
    ("zero2", "fp32_comm", "reduction_dtype: requested bfloat16, observed float32"),
    ("zero3", "fp32_comm", "reduction_dtype: requested bfloat16, observed float32"),
]
FP32 = [
    ("single", "autocast", "matmul_dtype: requested float32, observed bfloat16"),
    ("ddp", "autocast", "matmul_dtype: requested float32, observed bfloat16"),
    ("ddp", "bf16_hook", "reduction_dtype: requested float32, observed bfloat16"),
]
BROKEN = [("bf16", *broken) for broken in BF16] + [("no", *broken) for broken in FP32]

OWN = {
    "distributed_type": "FSDP",
    "mixed_precision": "no",
    "fsdp_config": {
        "fsdp_version": 1,
        "fsdp_sharding_strategy": "FULL_SHARD",
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_cpu_ram_efficient_loading": False,
        "fsdp_sync_module_states": False,
    },
}
TRUE = {
    "single": ("bfloat16", None),
    "ddp": ("bfloat16", "bfloat16"),
    "fsdp": ("bfloat16", "bfloat16"),
    "fsdp_grad_op": ("bfloat16", "bfloat16"),
    "fsdp2": ("bfloat16", "float32"),
    "zero1": ("bfloat16", "bfloat16"),
    "zero2": ("bfloat16", "bfloat16"),
    "zero3": ("bfloat16", "bfloat16"),
    "mine": ("float32", "float32"),
}
"""The dtypes of matrix products and of reductions, by backend."""


def sabotaged(bench: Bench, precision: str, broken: Sequence[tuple[str, str, str]]) -> list[Result]:
    matrix = bench.matrix(
        workload={"name": "sabotage:Sabotage"},
        matrix={},
        include=[{"backend": backend, "sabotage": sabotage, "batch": 2} for backend, sabotage, _ in broken],
        launch={"mixed_precision": precision},
    )
    bench("run", matrix, "--out", str(bench.folder / precision), expect=1)
    return bench.results(precision)


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[object, ...], Result]:
    bench = Bench(tmp_path_factory.mktemp("regimes"))
    results = [*sabotaged(bench, "bf16", BF16), *sabotaged(bench, "no", FP32)]
    return {
        (result.attempt.cell.mixed_precision, result.axes["backend"], result.axes["sabotage"]): result
        for result in results
    }


@pytest.mark.parametrize(("precision", "backend", "sabotage", "words"), BROKEN)
def test_another_regime_is_refused(
    refused: dict[tuple[object, ...], Result], precision: str, backend: str, sabotage: str, words: str
) -> None:
    outcome = refused[precision, backend, sabotage].outcome
    assert isinstance(outcome, Failed), outcome
    assert outcome.fault == "regime"
    assert words in outcome.reason


@pytest.fixture(scope="module")
def passed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    bench = Bench(tmp_path_factory.mktemp("true"))
    (bench.folder / "own.yaml").write_text(yaml.safe_dump(OWN))
    own = {"name": "mine", "config_file": "own.yaml"}
    matrix = bench.matrix(matrix={"backend": [*(name for name in TRUE if name != "mine"), own], "batch": [2]})
    bench("run", matrix, "--out", str(bench.folder / "run"))
    fp32 = ("--select", "backend=ddp,zero2", "--out", str(bench.folder / "fp32"))
    bench("run", matrix, "launch.mixed_precision=no", *fp32)
    found = {result.attempt.cell.backend: result for result in bench.results()}
    return found | {f"{result.attempt.cell.backend} in fp32": result for result in bench.results("fp32")}


@pytest.mark.parametrize(
    ("name", "matmuls", "reduction"),
    [
        *((name, *dtypes) for name, dtypes in TRUE.items()),
        ("ddp in fp32", "float32", "float32"),
        ("zero2 in fp32", "float32", "float32"),
    ],
)
def test_a_true_regime_passes(passed: dict[str, Result], name: str, matmuls: str, reduction: str | None) -> None:
    outcome = passed[name].outcome
    assert isinstance(outcome, Ok), outcome
    for rank in outcome.ranks:
        assert rank.regime.matmul_shares == {matmuls: 1.0}
        assert rank.regime.reduction_dtype == reduction
