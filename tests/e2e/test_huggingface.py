"""Models of transformers on real ranks: one in each test run, ten on all backends in `make long`, and more on three."""

from statistics import median

import pytest
import yaml
from families import FAMILIES, FP32, KINDS, MORE, workload
from harness import Bench

from bench import workloads
from bench.backends import BACKENDS
from bench.records.outcome import Ok, Result
from bench.store.run_folder import Store

SHARDED = ("fsdp", "fsdp_grad_op", "fsdp2", "zero3")


def run(
    bench: Bench, model_type: str, matrix: dict[str, object], expect: int = 0, **environment: str
) -> dict[tuple[str, bool], Result]:
    """The results by backend and checkpointing."""
    file = bench.folder / f"{model_type}.yaml"
    measure = {"warmup_steps": 1, "steps": 4, "phase_steps": 1}
    file.write_text(yaml.safe_dump({"workload": workload(model_type), **matrix, "measure": {"launches": 1, **measure}}))
    bench("run", str(file), "--out", str(bench.folder / "run"), expect=expect, **environment)
    results = Store(bench.folder / "run").results()
    return {(one.attempt.cell.backend, one.attempt.cell.options["grad_ckpt"]): one for one in results}


def check(results: dict[tuple[str, bool], Result]) -> None:
    """All trained, sharded in units where asked, to the losses of the first."""
    first: tuple[float, ...] | None = None
    for (backend, _), result in results.items():
        assert isinstance(result.outcome, Ok), result.outcome
        rank = result.outcome.ranks[0]
        assert (rank.regime.sharded_parameters > 0) == (backend in SHARDED)
        assert rank.unit_parameters, "units were found in the model"
        first = first or rank.losses
        relative = median(abs(a - b) / abs(a) for a, b in zip(first, rank.losses, strict=True))
        absolute = max(abs(a - b) for a, b in zip(first, rank.losses, strict=True))
        assert relative <= 0.02 or absolute <= 1e-3, (first, rank.losses)


@pytest.mark.parametrize("model_type", ["t5"])  # tests/guides runs gpt2
def test_sharded_or_not_with_checkpointing(bench: Bench, model_type: str) -> None:
    """Each rank has two threads, for which transformers' imports start one of OpenBLAS."""
    axes = {"backend": ["ddp", "fsdp2", "zero3"], "grad_ckpt": True, "batch": 2}
    results = run(bench, model_type, {"matrix": axes}, OMP_NUM_THREADS="2", OMP_WAIT_POLICY="passive")
    assert [(one.isolation, one.outcome.kind) for one in results.values()] == [("fork", "ok")] * 3
    assert all(
        rank.threads == 2 for one in results.values() if isinstance(one.outcome, Ok) for rank in one.outcome.ranks
    )
    check(results)
    cell = results["zero3", True].attempt.cell
    assert cell.workload == f"hf:{model_type}"
    assert FAMILIES[model_type].items() <= cell.options.items()
    assert not any(value for name, value in cell.options.items() if "drop" in name)


@pytest.mark.long
@pytest.mark.parametrize("model_type", FAMILIES)
def test_all_backends_with_and_without_checkpointing(bench: Bench, model_type: str) -> None:
    """`single` gets the batch of all ranks, so that it sees the same samples in each step."""
    batches = [{"backend": backend, "batch": 4 if backend == "single" else 2} for backend in BACKENDS]
    axes = {"backend": list(BACKENDS), "grad_ckpt": [False, True], "use_reentrant": False}
    results = run(bench, model_type, {"matrix": axes, "include": batches})
    assert len(results) == 2 * len(BACKENDS)
    check(results)


@pytest.mark.long
@pytest.mark.parametrize("model_type", [name for name in {**KINDS, **MORE} if name != "clip"])
def test_more_types_with_checkpointing(bench: Bench, model_type: str) -> None:
    """Those whose losses meet other samples of the batch, too: all backends give each rank the same samples."""
    grad_ckpt = getattr(workloads.load(f"hf:{model_type}").Config, "checkpoints")  # noqa: B009  # of hf: alone
    train = {"find_unused_parameters": True}
    axes = {"backend": ["ddp", "fsdp2", "zero3"], "grad_ckpt": grad_ckpt, "use_reentrant": False, "batch": 2}
    precision = {"mixed_precision": "no" if model_type in FP32 else "bf16"}
    results = run(bench, model_type, {"matrix": axes, "train": train, "launch": precision})
    assert len(results) == 3
    check(results)


@pytest.mark.long
def test_a_parameter_without_a_dimension_is_named_where_nothing_can_shard_it(bench: Bench) -> None:
    """CLIP's temperature: neither `fully_shard` nor DeepSpeed takes it."""
    axes = {"backend": ["ddp", "fsdp2", "zero3"], "batch": 2}
    results = run(bench, "clip", {"matrix": axes, "train": {"find_unused_parameters": True}}, expect=1)
    assert [one.outcome.kind for one in results.values()] == ["ok", "failed", "failed"]
    assert all("logit_scale" in str(one.outcome) for one in results.values() if one.outcome.kind == "failed")
