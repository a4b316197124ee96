"""fp16 with scaled gradients on all backends; DeepSpeed takes it only on CPUs with instructions for it."""

import pytest
import torch
from harness import FEW_STEPS, Bench

from bench.backends import BACKENDS
from bench.records.outcome import Ok

NAMES = [name for name in BACKENDS if not name.startswith("zero") or torch.ops.mkldnn._is_mkldnn_fp16_supported()]


@pytest.mark.long
def test_all_backends_train_in_fp16_to_the_same_losses(bench: Bench) -> None:
    """After the scale is found, which takes each as many steps as its scaler needs: each has the same first loss."""
    matrix = bench.matrix(
        matrix={"backend": NAMES, "batch": 2}, launch={"mixed_precision": "fp16"}, measure={**FEW_STEPS, "steps": 4}
    )
    bench.start("run", matrix, "--out", str(bench.folder / "run")).communicate()
    first = {}
    for result in bench.results():
        assert isinstance(result.outcome, Ok), result.outcome
        backend, rank = result.attempt.cell.backend, result.outcome.ranks[0]
        assert rank.regime.matmul_dtype == "float16", backend
        assert rank.regime.optimizer_dtype == "float32", backend
        assert rank.skipped_steps is not None
        if backend != "single":
            first[backend] = rank.warmup_losses[0]
    assert list(first.values()) == pytest.approx([first["ddp"]] * len(first), rel=0.01)
    assert len(bench.results()) == len(NAMES)
