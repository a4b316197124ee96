"""fp16 with a gradient scaler, on one rank in this process: torch's CPU has both."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState
from examples import cell

from bench.errors import InputError
from bench.observe.beats import BeatFile
from bench.records.cell import Attempt, Measure, Train
from bench.records.rank_outcome import RankOk
from bench.report import implausible
from bench.runner.attempt import Here, _measure
from bench.runner.device import Cpu
from bench.runner.regime import check
from bench.runner.setup import set_up

STEPS = 4


def measured(folder: Path, first_scale: float, fused: bool | None = None) -> RankOk:
    AcceleratorState._reset_state(reset_partial_state=True)
    measure = Measure(warmup_steps=1, steps=STEPS, phase_steps=0)
    options: dict[str, Any] = {"width": 16}
    settings: dict[str, Any] = {"workload": "toy:Toy", "options": options, "measure": measure}
    one = cell("single", num_processes=1, mixed_precision="fp16", train=Train(fused=fused), **settings)
    job = set_up(one, Cpu(), 2)
    job.accelerator.scaler._init_scale = first_scale
    job.accelerator.scaler._growth_interval = 3
    here = Here(0, Cpu(), folder, BeatFile(folder, 0))
    found = _measure(Attempt(cell=one, batch_per_rank=2), "cpu", job, here, 0.0, contextlib.ExitStack())
    check(one, "cpu", found.regime)
    return found


@pytest.fixture(autouse=True)
def precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")


def test_products_are_in_fp16_and_weights_in_fp32(tmp_path: Path) -> None:
    found = measured(tmp_path, 1024.0)
    assert (found.regime.matmul_dtype, found.regime.weights_dtype) == ("float16", "float32")
    assert (found.regime.masters_dtype, found.regime.optimizer_dtype) == ("float32", "float32")
    assert found.skipped_steps == 0
    assert len(found.warmup_losses) == 2


@pytest.mark.parametrize("fused", [None, True])
def test_steps_that_overflow_are_skipped_and_counted(tmp_path: Path, fused: bool | None) -> None:
    """The scale begins where fp32 ends, so that fp16 overflows for many steps, and doubles again after three. A fused
    optimizer skips its steps by itself."""
    found = measured(tmp_path, float(2**60), fused)
    first = found.warmup_losses[0]
    assert len(found.warmup_losses) > 10, "as many as it takes to halve the scale to what fp16 can hold"
    assert torch.isfinite(torch.tensor(found.losses)).all()
    assert first > 0
    assert 0 < found.skipped_steps < STEPS


def test_gradients_that_overflow_at_any_scale_are_one_message(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="overflowed in each of 64 steps"):
        measured(tmp_path, float(2**127))


def test_skipped_steps_are_told_in_the_report() -> None:
    from examples import ok, result

    from bench.records.outcome import Ok
    from bench.report.summary import summarize

    ranks = tuple(one.model_copy(update={"skipped_steps": 1}) for one in ok().ranks)
    [row] = summarize([result(Ok(ranks=ranks))]).rows
    steps = len(ranks[0].step_times_s)
    [said] = implausible.skipped_steps(row, every=False)
    assert said.reason == f"1 of {steps} steps did not change the weights: gradients overflowed."
    assert not list(implausible.skipped_steps(row, every=True))
    none = tuple(one.model_copy(update={"skipped_steps": steps}) for one in ranks)
    assert summarize([result(Ok(ranks=none))]).cells[0].invalid
