"""Ranks of a sharded backend that decide alone which optional parts to compute lose step with each other."""

import re

import pytest
from policy import OPTIONAL_PARTS
from table import FaultBench

SAYS = {
    "OFF": "Received data size doesn't match expected size",  # gloo aborts
    "DETAIL": "Detected mismatch between collectives on ranks",
}


@pytest.mark.parametrize("level", SAYS)
def test_ranks_that_decide_alone_desynchronize_a_sharded_backend(bench: FaultBench, level: str) -> None:
    matrix = bench.matrix(
        workload={**OPTIONAL_PARTS, "branch_sync": "none"},
        matrix={"backend": ["fsdp", "zero3"], "batch": 1},
        measure={"warmup_steps": 1, "steps": 50, "phase_steps": 0},
        launch={"attempt_timeout_s": 120},
    )
    bench("run", matrix, "--out", str(bench.folder / "run"), expect=1, TORCH_DISTRIBUTED_DEBUG=level)
    for result in bench.results():
        outcome = result.outcome
        assert outcome.fault == "desync"
        assert re.search(r"rank 0 in \w+ \(model/\w+\.py:\d+\); rank 1 in \w+ \(model/\w+\.py:\d+\)", outcome.reason)
        assert SAYS[level] in outcome.reason
