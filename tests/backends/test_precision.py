"""In which precision single and ddp hold their weights: as accelerate does, or cast to bf16."""

from typing import Any

import pytest
from examples import cell

from bench import backends
from bench.backends import BACKENDS
from bench.records.cell import Cell, Train

FP32, BF16 = Train(weights="fp32"), Train(weights="bf16")
OWN = {"distributed_type": "MULTI_GPU", "mixed_precision": "bf16"}


def regime(one: Cell) -> dict[str, object]:
    names = ("weights_dtype", "masters_dtype", "optimizer_dtype", "reduction_dtype", "matmul_dtype")
    return {name: dtype for name, dtype in backends.expected_regime(one, "cpu").items() if name in names}


def test_fp32_weights_are_stepped_and_reduced_in_fp32_and_multiplied_in_bf16() -> None:
    found = regime(cell("ddp", train=FP32))
    assert found.pop("matmul_dtype") == "bfloat16"
    assert set(found.values()) == {"float32"}
    assert len(found) == 4


def test_an_own_config_of_ddp_runs_as_accelerate_runs_it() -> None:
    mine = cell("mine", accelerate=OWN, train=BF16)
    assert backends.autocasts(mine)
    assert regime(mine)["weights_dtype"] == "float32"
    full = cell("mine", accelerate={**OWN, "mixed_precision": "no"}, mixed_precision="no")
    assert not backends.autocasts(full)


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name not in ("single", "ddp")])
def test_other_backends_do_not_change(backend: str) -> None:
    assert regime(cell(backend, train=FP32)) == regime(cell(backend, train=BF16))
    assert not cell(backend, train=FP32).chooses_weights
    assert "weights" not in cell(backend, train=FP32).train_settings


@pytest.mark.parametrize(
    ("changes", "off"), [({"train": FP32}, False), ({"train": BF16}, True), ({"mixed_precision": "no"}, True)]
)
def test_autocast_is_off_where_weights_are_computed_with_as_they_are(changes: dict[str, Any], off: bool) -> None:
    assert ("autocast off" in backends.beside_config(cell("ddp", **changes), "cpu")) is off


def test_there_are_no_copies_of_fp32_weights_to_leave_out() -> None:
    without = Train(weights="fp32", master_weights=False)
    assert "updates its fp32 weights" in (backends.forbids(cell("ddp", train=without), "cpu") or "")
    assert backends.forbids(cell("ddp", train=Train(weights="bf16", master_weights=False)), "cpu") is None
