"""Optional parts that samples lack at the published rates, on two real ranks."""

import math
import re
from collections.abc import Sequence

import pytest
from harness import Bench
from kept import KeptBench
from policy import OPTIONAL_PARTS

from bench.records.outcome import Failed, Result

BACKENDS = ["ddp", "fsdp", "fsdp2", "zero3"]
TWO = ["fsdp2", "zero3"]
ALONE = {"backend": "fsdp", "branch_sync": "none", "batch": 1}
"""Each rank decides for itself."""
LACKING = {"backend": "fsdp", "branch_sync": "agree", "lacking": True, "batch": 1}
"""Rank 1 lacks a field that rank 0 has."""


def measured(
    bench: Bench, steps: int, backends: Sequence[str], include: Sequence[dict[str, object]] = ()
) -> list[Result]:
    matrix = bench.matrix(
        workload={**OPTIONAL_PARTS, "name": "partial:Partial"},
        matrix={"backend": [*backends], "branch_sync": ["agree", "hoist"], "lacking": False, "batch": 1},
        include=include,
        measure={"warmup_steps": 1, "steps": steps - 1, "phase_steps": 0},
    )
    bench("run", matrix, "--out", str(bench.folder / "run"), expect=1 if include else 0)
    return bench.results()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    """Of twenty steps, with the cells that fail."""
    bench = KeptBench(tmp_path_factory.mktemp("optional"))
    found = measured(bench, 20, TWO, [ALONE, LACKING])
    bench.assert_gone()
    return found


def of(results: Sequence[Result], axes: dict[str, object]) -> Result:
    [found] = [result for result in results if axes.items() <= {**result.axes, "batch": 1}.items()]
    return found


def check_that_they_learn_the_same(results: Sequence[Result], steps: int, backends: Sequence[str]) -> None:
    losses = {}
    for backend in backends:
        for sync in ("agree", "hoist"):
            result = of(results, {"backend": backend, "branch_sync": sync, "lacking": False})
            rank = result.outcome.ranks[0]  # type: ignore[union-attr]
            losses[sync] = rank.losses
            assert len(rank.warmup_losses + rank.losses) == steps
            assert all(map(math.isfinite, rank.losses))
        # Who decides changes the work, not what is learnt.
        for agreed, hoisted in zip(losses["agree"][:20], losses["hoist"][:20], strict=True):
            assert agreed == pytest.approx(hoisted, rel=0.02)


def test_steps_end_when_ranks_agree_and_when_nothing_is_left_to_decide(results: list[Result]) -> None:
    check_that_they_learn_the_same(results, 20, TWO)


@pytest.mark.long
def test_two_hundred_steps_end_too(bench: Bench) -> None:
    check_that_they_learn_the_same(measured(bench, 200, BACKENDS), 200, BACKENDS)


def test_ranks_that_decide_alone_desynchronize_a_sharded_backend(results: list[Result]) -> None:
    """tests/faults/test_desync.py has another backend and torch's own checks."""
    outcome = of(results, ALONE).outcome
    assert outcome.fault == "desync"
    assert re.search(r"rank 0 in \w+ \(model/\w+\.py:\d+\); rank 1 in \w+ \(model/\w+\.py:\d+\)", outcome.reason)
    assert "Received data size doesn't match expected size" in outcome.reason  # gloo aborts


def test_a_field_that_only_some_ranks_have_is_named_with_the_ranks(results: list[Result]) -> None:
    outcome = of(results, LACKING).outcome
    assert isinstance(outcome, Failed)
    assert "'subgoal_is_real' is in the batches of rank 0 but not of rank 1" in outcome.reason
