"""Models with what only some backends train, on real ranks: measured where torch can, else refused with what to do."""

import pytest
from harness import Bench, ok
from kept import KeptBench

from bench.records.outcome import Failed

BENCH = KeptBench
STEPS = {"warmup_steps": 1, "steps": 2, "phase_steps": 0}
COMPLEX = "cannot take the parameter 0.inner.weights: it is complex64; make it a buffer"
REASONS = {
    ("complex", "fsdp2"): f"InputError: fsdp2 {COMPLEX}",
    ("complex", "zero2"): f"InputError: zero2 {COMPLEX}",
    (
        "spectral",
        "fsdp2",
    ): "RuntimeError: 0.inner.parametrizations.weight.0 has fp32 buffers, which FSDP2 does not cast",
    ("outside", "fsdp2"): "RuntimeError: FSDP2 gathers the weights of a unit for its forward and backward alone",
    ("outside", "fsdp"): "InputError: FSDP1 gathers the weights of a unit for its forward and backward alone, and the"
    " model uses blocks.0.inner.weight at another time",
    ("derived", "zero3"): "RuntimeError: ZeRO-3 gathers the weights of a module for its forward and one backward alone",
}


def test_what_a_backend_trains_is_measured_and_the_rest_is_named(bench: Bench) -> None:
    matrix = bench.matrix(
        workload={"name": "unusual:unusual"},
        matrix={"kind": ["complex", "spectral", "outside"], "backend": ["ddp", "fsdp2", "zero2"], "batch": 2},
        include=[
            *({"kind": "outside", "backend": name, "batch": 2} for name in ("fsdp", "fsdp_grad_op", "zero3")),
            *({"kind": "derived", "backend": name, "batch": 2} for name in ("ddp", "fsdp", "zero3")),
        ],
        measure=STEPS,
    )
    bench("run", matrix, "--out", str(bench.folder / "run"), expect=1)
    for result in bench.results():
        cell = result.attempt.cell
        if reason := REASONS.get((cell.options["kind"], cell.backend)):
            assert isinstance(result.outcome, Failed)
            assert result.outcome.reason.startswith(reason)
        else:
            regime = ok(result).ranks[0].regime
            assert regime.weights_dtype == ("bfloat16" if cell.backend.startswith("zero") else "float32")
            if cell.options["kind"] == "complex":  # two filters of nine numbers with two parts
                assert regime.trained_parameters == 2 * 9 * 2


def test_sparse_gradients_need_the_settings_that_the_refusal_names(bench: Bench) -> None:
    fields = {"workload": {"name": "unusual:unusual", "kind": "sparse"}, "measure": STEPS}
    bench(
        "run",
        bench.matrix(matrix={"backend": "ddp", "batch": 2}, **fields),
        "--out",
        str(bench.folder / "run"),
        expect=1,
    )
    [refused] = bench.results()
    assert isinstance(refused.outcome, Failed)
    settings = {"optimizer": "torch.optim:SGD", "weight_decay": 0.0, "max_grad_norm": None}
    assert all(f"train.{name}: " in refused.outcome.reason for name in settings)
    named = bench.matrix(matrix={"backend": "ddp", "batch": 2}, train=settings, **fields)
    bench("run", named, "--out", str(bench.folder / "named"))
    [result] = bench.results("named")
    ok(result)


def test_steps_that_deepspeed_skips_are_counted(bench: Bench) -> None:
    matrix = bench.matrix(
        workload={"name": "unusual:unusual", "kind": "overflowing"},
        matrix={"backend": "zero2", "batch": 2},
        launch={"mixed_precision": "bf16"},
        measure={**STEPS, "steps": 4},
    )
    bench("run", matrix, "--out", str(bench.folder / "run"))
    [result] = bench.results()
    assert [rank.skipped_steps for rank in ok(result).ranks] == [2, 2]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            "lazy",
            "the module 0.inner of the workload's model has no shape yet: LazyLinear gets it from its first input",
        ),
        ("listed", "Listed.heads of the workload's model holds a Linear: it gets a gradient, but is not among"),
        pytest.param("scripted", "the module 0.inner of the workload is scripted", marks=pytest.mark.long),
    ],
)
def test_what_no_backend_trains_is_one_message(bench: Bench, kind: str, message: str) -> None:
    matrix = bench.matrix(
        workload={"name": "unusual:unusual", "kind": kind}, matrix={"backend": ["ddp", "zero2"], "batch": 2}
    )
    said = bench("run", matrix, "--out", str(bench.folder / "run"), expect=2)
    assert said.count(message) == 1
    assert not bench.results()
