"""bf16 with fp32 master weights trains like fp32 on every backend; pure bf16 does not."""

from statistics import fmean

import pytest
from harness import ROOT, Bench


@pytest.mark.long
def test_masters_reach_the_loss_of_fp32_and_plain_bf16_does_not(bench: Bench) -> None:
    bench(
        "run", str(ROOT / "matrices/precision.yaml"), "measure.launches=1", "--out", str(bench.folder / "run"), cwd=ROOT
    )
    last = {}
    for result in bench.results():
        rank = result.outcome.ranks[0]  # type: ignore[union-attr]
        assert len(rank.warmup_losses + rank.losses) == 300
        cell = result.attempt.cell
        autocast = ["autocast"] if cell.train.weights == "fp32" else []
        last[cell.backend, *(autocast or [cell.mixed_precision, cell.train.master_weights])] = fmean(rank.losses[-20:])
    fp32 = last.pop(("ddp", "no", True))
    plain = last.pop(("ddp", "bf16", False))
    masters = {(backend, "bf16", True) for backend in ("ddp", "fsdp", "fsdp2", "zero2")}
    assert set(last) == {*masters, ("ddp", "autocast")}
    for backend, loss in last.items():
        assert abs(loss / fp32 - 1) <= 0.03, backend
    assert plain / fp32 - 1 > 0.03
