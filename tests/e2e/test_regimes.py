"""Each backend's regime is broken on purpose; the result is rejected, and the message names both regimes."""

import pytest
from harness import Bench

BROKEN = [
    ("single", "masters", "masters_dtype: requested float32, observed bfloat16"),
    ("ddp", "masters", "optimizer_dtype: requested float32, observed bfloat16"),
    ("fsdp", "settings", "sharding: requested FULL_SHARD, observed SHARD_GRAD_OP"),
    ("fsdp_grad_op", "settings", "sharding: requested SHARD_GRAD_OP, observed FULL_SHARD"),
    ("fsdp2", "reduction", "reduction_dtype: requested float32, observed bfloat16"),
    ("zero1", "settings", "sharding: requested zero1, observed zero2"),
    ("zero2", "settings", "sharding: requested zero2, observed zero1"),
    ("zero3", "settings", "sharding: requested zero3, observed zero2"),
]


@pytest.fixture(scope="module")
def reasons(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[object, object], str]:
    bench = Bench(tmp_path_factory.mktemp("regimes"))
    matrix = bench.matrix(
        workload={"name": "sabotage:Sabotage"},
        matrix={},
        include=[{"backend": backend, "sabotage": sabotage, "batch": 2} for backend, sabotage, _ in BROKEN],
    )
    bench("run", matrix, "--out", str(bench.folder / "run"), expect=1)
    return {
        (result.axes["backend"], result.axes["sabotage"]): getattr(result.outcome, "reason", result.outcome.kind)
        for result in bench.results()
    }


@pytest.mark.parametrize(("backend", "sabotage", "words"), BROKEN)
def test_another_regime_is_refused(
    reasons: dict[tuple[object, object], str], backend: str, sabotage: str, words: str
) -> None:
    assert words in reasons[backend, sabotage]
