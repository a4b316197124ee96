"""Optional parts that samples lack at the published rates, on two real ranks."""

import math
import re

import pytest
from harness import Bench

from bench.records.outcome import Failed

POLICY = {
    "name": "pi07",
    "preset": "tiny",
    "n_layers": 1,
    "vision_layers": 1,
    "image_size": 32,
    "num_cams": 1,
    "prompt_len": 8,
    "response_len": 8,
    "metadata_len": 8,
    "subgoal": True,
}
BACKENDS = ["ddp", "fsdp", "fsdp2", "zero3"]


@pytest.mark.parametrize("steps", [30, pytest.param(200, marks=pytest.mark.long)])
def test_steps_end_when_ranks_agree_and_when_nothing_is_left_to_decide(bench: Bench, steps: int) -> None:
    matrix = bench.matrix(
        workload=POLICY,
        matrix={"backend": BACKENDS, "branch_sync": ["agree", "hoist"], "batch": 1},
        measure={"warmup_steps": 1, "steps": steps - 1, "phase_steps": 0},
    )
    bench("run", matrix, "--out", str(bench.folder / "run"))
    losses = {}
    for result in bench.results():
        rank = result.outcome.ranks[0]  # type: ignore[union-attr]
        losses[result.axes["backend"], result.axes["branch_sync"]] = rank.losses
        assert len(rank.warmup_losses + rank.losses) == steps
        assert all(map(math.isfinite, rank.losses))
    assert len(losses) == 2 * len(BACKENDS)
    for backend in BACKENDS:  # who decides changes the work, not what is learnt
        for agreed, hoisted in zip(*(losses[backend, sync][:20] for sync in ("agree", "hoist")), strict=True):
            assert agreed == pytest.approx(hoisted, rel=0.02)


@pytest.mark.parametrize("level", ["OFF", "DETAIL"])
def test_ranks_that_decide_alone_desynchronise_a_sharded_backend(bench: Bench, level: str) -> None:
    matrix = bench.matrix(
        workload={**POLICY, "branch_sync": "none"},
        matrix={"backend": ["fsdp", "zero3"], "batch": 1},
        measure={"warmup_steps": 1, "steps": 50, "phase_steps": 0},
        launch={"attempt_timeout_s": 120},
    )
    bench("run", matrix, "--out", str(bench.folder / "run"), expect=1, TORCH_DISTRIBUTED_DEBUG=level)
    said = {
        "OFF": "Received data size doesn't match expected size",  # gloo aborts
        "DETAIL": "Detected mismatch between collectives on ranks",
    }
    for result in bench.results():
        outcome = result.outcome
        assert isinstance(outcome, Failed)
        assert outcome.fault == "desync"
        assert re.search(r"rank 0 in \w+ \(model/\w+\.py:\d+\); rank 1 in \w+ \(model/\w+\.py:\d+\)", outcome.reason)
        assert said[level] in outcome.reason


def test_a_field_that_only_some_ranks_have_is_named_with_the_ranks(bench: Bench) -> None:
    matrix = bench.matrix(
        workload={**POLICY, "name": "partial:Partial", "branch_sync": "agree"},
        matrix={"backend": "fsdp", "batch": 1},
    )
    bench("run", matrix, "--out", str(bench.folder / "run"), expect=1)
    [result] = bench.results()
    assert result.outcome.kind == "failed"
    assert "'subgoal_is_real' is in the batches of rank 0 but not of rank 1" in result.outcome.reason
