"""Scripts of every library are measured as they are: real launches of two ranks."""

import importlib.util
import sys
from pathlib import Path

import pytest
from harness import Bench, reading
from observing import TORCHRUN, matrix, per_step, regime

STYLES: dict[str, tuple[list[str], tuple[float, float], dict[str, object]]] = {
    "fsdp2": ([*TORCHRUN, "fsdp2.py", "--batch", "{batch}"], (1, 4), {"sharding": "fully_shard"}),
    "accelerated": (
        [
            "accelerate",
            "launch",
            "--multi_gpu",
            "--num_processes",
            "{num_processes}",
            "accelerated.py",
            "--batch",
            "{batch}",
        ],
        (2, 8),
        {"distributed_type": "MULTI_CPU"},
    ),
    "engine": (
        [*TORCHRUN, "engine.py", "--batch", "{batch}"],
        (2, 8),
        {"sharding": "zero2", "weights_dtype": "bfloat16", "masters_dtype": "float32", "optimizer_dtype": "float32"},
    ),
    "trainer": (
        [*TORCHRUN, "trainer.py", "--per_device_train_batch_size", "{batch}"],
        (4, 16),
        {"distributed_type": "MULTI_CPU"},
    ),
    "gpt": ([*TORCHRUN, "gpt.py", "--batch_size={batch}"], (5, 20), {"attention_kernels": ("flash",)}),
    "lightning": (["python", "lit.py", "--batch", "{batch}"], (1, 4), {"distributed_type": "MULTI_CPU"}),
    "fabric": (["python", "fabric.py", "--batch", "{batch}"], (1, 4), {"distributed_type": "MULTI_CPU"}),
    "trl": (
        [*TORCHRUN, "sft.py", "--per_device_train_batch_size", "{batch}"],
        (1, 4),
        {"distributed_type": "MULTI_CPU"},
    ),
}
EXTRAS = {"lightning": "lightning", "fabric": "lightning", "trl": "trl"}


@pytest.mark.parametrize("style", STYLES)
def test_scripts_of_every_library_are_measured_unedited(style: str, bench: Bench, tmp_path: Path) -> None:
    if style in EXTRAS and importlib.util.find_spec(EXTRAS[style]) is None:
        pytest.skip(f"needs {EXTRAS[style]}: pip install -e .[scripts]")
    command, steps, observed = STYLES[style]
    batches = [4, 8] if style in ("fsdp2", "engine") else [4]
    file = matrix(tmp_path, command, matrix={"batch": batches})
    built = {"TORCH_EXTENSIONS_DIR": f"{sys.prefix}/torch_extensions"}
    bench("run", file, "--out", str(tmp_path / "run"), **built)
    bench.assert_gone()
    first, *more = bench.results()
    forwards, samples = steps
    assert [per_step(one) for one in (first, *more)] == [(forwards, samples * batch / 4) for batch in batches]
    assert regime(first).world_size == 2
    assert {name: getattr(regime(first), name) for name in observed} == observed
    table = reading("report", "--full", str(tmp_path / "run"), "--format", "md")
    assert "No row" not in table
