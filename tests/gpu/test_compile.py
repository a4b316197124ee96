"""torch.compile, FlexAttention, and both."""

from collections.abc import Callable
from typing import Any

import pytest
from checks import POLICY, first, needs_device, run
from harness import Bench

from bench.records.rank_outcome import RankOk

MEASURE = {"warmup_steps": 2, "steps": 5, "phase_steps": 2}
Found = Callable[..., None]


def of_one(bench: Bench, backend: str = "single", attention: str = "sdpa", **train: Any) -> RankOk:
    """The bundled policy in a world of one."""
    name = "-".join(["run", backend, attention, *map(str, train.values())])
    [result] = run(
        bench, [{"backend": backend}], name, workload={**POLICY, "attention": attention}, measure=MEASURE, train=train
    )
    return first(result)


@needs_device("for a CPU, torch compiles for minutes")
def test_compiled_units_train(bench: Bench, found: Found) -> None:
    """Units that are compiled train, without another graph while measured."""
    compiled = of_one(bench, "fsdp2", compile="unit").compilation
    assert compiled is not None
    found(graphs=compiled.graphs, seconds=f"{compiled.compile_s:.0f}")
    assert compiled.graphs > 0
    assert compiled.graphs_while_measured == 0


@needs_device("FlexAttention trains on GPUs alone")
@pytest.mark.parametrize("compiled", ["none", "unit"])
def test_flex_attention_trains(bench: Bench, found: Found, compiled: str) -> None:
    """FlexAttention has the losses of torch's fused kernel, and the regime checks hold."""
    sdpa, flex = of_one(bench).losses, of_one(bench, attention="flex", compile=compiled).losses
    found(sdpa=f"{sdpa[-1]:.4f}", flex=f"{flex[-1]:.4f}")
    assert flex == pytest.approx(sdpa, rel=0.02)
