"""Each backend's regime is broken on purpose; the result is rejected, and the message names both regimes. True regimes
pass."""

import pytest
import yaml
from table import FaultBench

from bench.records.outcome import Failed, Ok, Outcome

MASTERS = "masters_dtype: requested float32, observed bfloat16; optimizer_dtype: requested float32, observed bfloat16"
NOT_ZERO3 = (
    "sharding: requested zero3, observed zero2; overlap_comm: requested True, observed False;"
    " sharded_parameters: requested some, observed 0"
)
BF16 = [
    ("single", "masters", MASTERS),
    ("ddp", "masters", MASTERS),
    ("fsdp", "settings", "sharding: requested FULL_SHARD, observed SHARD_GRAD_OP"),
    ("fsdp_grad_op", "settings", "sharding: requested SHARD_GRAD_OP, observed FULL_SHARD"),
    ("fsdp2", "reduction", "reduction_dtype: requested float32, observed bfloat16"),
    ("zero1", "settings", "sharding: requested zero1, observed zero2"),
    ("zero2", "settings", "sharding: requested zero2, observed zero1"),
    ("zero3", "settings", NOT_ZERO3),
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
    ("fsdp2", "reshard", "reshard_after_forward: requested True, observed False"),
    ("fsdp2", "offload", "offload: requested none, observed params"),
    ("fsdp2", "mesh", "mesh: requested {'pp': 1, 'dp': 2, 'tp': 1}, observed None"),
    ("zero2", "overlap", "overlap_comm: requested False, observed True"),
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
TRUE = [
    ("bf16", "single", "bfloat16", None),
    ("bf16", "ddp", "bfloat16", "bfloat16"),
    ("bf16", "fsdp", "bfloat16", "bfloat16"),
    ("bf16", "fsdp_grad_op", "bfloat16", "bfloat16"),
    ("bf16", "fsdp2", "bfloat16", "float32"),
    ("bf16", "zero1", "bfloat16", "bfloat16"),
    ("bf16", "zero2", "bfloat16", "bfloat16"),
    ("bf16", "zero3", "bfloat16", "bfloat16"),
    ("no", "ddp", "float32", "float32"),
    ("no", "zero2", "float32", "float32"),
    ("no", "mine", "float32", "float32"),
]
"""Precision and backend, and the dtypes of matrix products and of reductions."""

Key = tuple[object, object, object]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[Key, Outcome]:
    """By precision, backend and sabotage."""
    bench = FaultBench(tmp_path_factory.mktemp("regimes"))
    (bench.folder / "own.yaml").write_text(yaml.safe_dump(OWN))
    own = {"mine": {"name": "mine", "config_file": "own.yaml"}}
    cells = [broken[:3] for broken in BROKEN] + [(precision, backend, "none") for precision, backend, *_ in TRUE]
    matrix = bench.matrix(
        workload={"name": "sabotage:Sabotage"},
        matrix={},
        train={"weights": "bf16"},
        include=[
            {"backend": own.get(backend, backend), "mixed_precision": precision, "sabotage": sabotage, "batch": 2}
            for precision, backend, sabotage in cells
        ],
    )
    bench("run", matrix, "--out", str(bench.folder / "run"), expect=1)
    return {
        (result.attempt.cell.mixed_precision, result.axes["backend"], result.axes["sabotage"]): result.outcome
        for result in bench.results()
    }


@pytest.mark.parametrize(("precision", "backend", "sabotage", "words"), BROKEN)
def test_another_regime_is_refused(
    outcomes: dict[Key, Outcome], precision: str, backend: str, sabotage: str, words: str
) -> None:
    outcome = outcomes[precision, backend, sabotage]
    assert isinstance(outcome, Failed), outcome
    assert outcome.fault == "regime"
    # Nothing but what was sabotaged.
    assert outcome.reason.endswith(f"{backend} did not run as requested: {words}")


@pytest.mark.parametrize(("precision", "backend", "matmuls", "reduction"), TRUE)
def test_a_true_regime_passes(
    outcomes: dict[Key, Outcome], precision: str, backend: str, matmuls: str, reduction: str | None
) -> None:
    outcome = outcomes[precision, backend, "none"]
    assert isinstance(outcome, Ok), outcome
    for rank in outcome.ranks:
        assert rank.regime.matmul_shares == {matmuls: 1.0}
        assert rank.regime.reduction_dtype == reduction
