"""Warm-up by steps and by seconds, on two real ranks of which one is slower."""

import os

import pytest
from harness import Bench
from kept import KeptBench

from bench.machine import numa
from bench.records.outcome import Ok

BENCH = KeptBench
UNTIL_S = 2.5


@pytest.mark.parametrize("warmup_steps", [1, 200])
def test_all_ranks_end_the_warm_up_at_one_step_once_both_limits_are_reached(bench: Bench, warmup_steps: int) -> None:
    lag_s = 0.05 if warmup_steps == 1 else 0.02
    matrix = bench.matrix(
        workload={"name": "lagging:Toy", "lag_s": lag_s},
        matrix={"backend": ["ddp", "fsdp2"] if warmup_steps == 1 else ["ddp"], "batch": [2]},
        measure={"warmup_steps": warmup_steps, "warmup_s": UNTIL_S, "steps": 3, "phase_steps": 1},
    )
    bench("run", matrix, "--out", str(bench.folder / "run"))
    bench.assert_gone()
    for result in bench.results():
        assert isinstance(result.outcome, Ok), result.outcome
        one, other = result.outcome.ranks
        assert one.warmup_losses == other.warmup_losses  # means over both, of as many steps
        assert min(one.warmup_s, other.warmup_s) >= UNTIL_S
        nodes = numa.nodes()
        for rank in (one, other):
            assert rank.cores
            if len(nodes) < 2:  # nothing to bind: all cores, all of one node
                assert rank.cpus == numa.listed(os.sched_getaffinity(0))
                assert rank.numa_node == next(iter(nodes), None)
        if warmup_steps == 1:
            assert len(one.warmup_losses) > 1
        else:
            assert len(one.warmup_losses) == warmup_steps
