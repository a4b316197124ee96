"""Optimizers, compilation and checkpoints on real ranks: one run of a small problem that can be learned."""

from pathlib import Path
from statistics import fmean

import pytest
import torch
from dumps import ALIKE
from harness import ok, reading
from kept import KeptBench

from bench.records.outcome import Ok, Result, Skipped
from bench.report.doubts import doubts
from bench.report.summary import summarize
from bench.store.run_folder import Store

BACKENDS = ("single", "ddp", "fsdp", "fsdp_grad_op", "fsdp2", "zero1", "zero2", "zero3")
MUON = ("single", "ddp", "fsdp2")
COMPILED = (("fsdp2", "unit"),)
"""The others are in tests/faults: a compiler takes long on a CPU."""
STEPS = 24


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    bench = KeptBench(tmp_path_factory.mktemp("training"))
    alike = {"single": 1, "ddp": 2, "fsdp2": 2}
    fp32 = {"mixed_precision": "no", "optimizer": "muon"}
    matrix = bench.matrix(
        workload={"name": "dumps:Dumps"},
        matrix={},
        include=[
            {"backend": backend, "batch": ALIKE, **fields}
            for backend, fields in [
                *((name, {"dump": str(bench.folder / name), "ranks_alike": alike[name], **fp32}) for name in MUON),
                *((name, {"optimizer": "muon"}) for name in ("ddp", "fsdp2", "fsdp", "zero2")),
                *((name, {"optimizer": "torch.optim:SGD"}) for name in ("fsdp2", "zero2")),
                *((name, {}) for name in BACKENDS),
                ("fsdp2", {"optimizer": "none"}),
                *((name, {"accumulate": 2}) for name in ("ddp", "zero2")),
                *((name, {"compile": how}) for name, how in COMPILED),
            ]
        ],
        train={"learning_rate": 2e-3, "max_grad_norm": 1e6},
        measure={"warmup_steps": 2, "steps": STEPS, "phase_steps": 2, "checkpoint": True},
    )
    bench("run", matrix, "--out", str(bench.folder / "run"))
    bench.assert_gone()
    return bench.folder / "run"


@pytest.fixture(scope="module")
def results(run: Path) -> list[Result]:
    return Store(run).results()


def of(results: list[Result], **settings: object) -> list[Result]:
    """The measured results with these settings."""
    found = []
    for result in results:
        cell = result.attempt.cell
        known = {**cell.model_dump(), **cell.train.model_dump()}
        if isinstance(result.outcome, Ok) and all(known[name] == value for name, value in settings.items()):
            found.append(result)
    return found


def test_nothing_failed_but_what_is_refused(results: list[Result]) -> None:
    skipped = [result for result in results if isinstance(result.outcome, Skipped)]
    assert {result.attempt.cell.backend for result in skipped} == {"fsdp", "zero2"}
    for result in skipped:
        assert isinstance(result.outcome, Skipped)
        assert "Muon orthogonalizes whole matrices" in result.outcome.reason
    others = [result for result in results if result not in skipped]
    assert {result.outcome.kind for result in others} == {"ok"}, [result.outcome for result in others]


# --- Muon -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["ddp", "fsdp2"])
def test_muon_makes_the_same_weights_sharded_and_in_one_process(run: Path, backend: str) -> None:
    """After 20 steps in fp32, in the weights that forward sees, from the same gradients; nothing is clipped."""
    alone = torch.load(run.parent / "single.rank0")
    assert len(alone) == 2
    for rank in (0, 1):
        weights = torch.load(run.parent / f"{backend}.rank{rank}")
        for one, other in zip(alone, weights, strict=True):
            assert one.keys() == other.keys()
            for name in one:
                torch.testing.assert_close(other[name], one[name], rtol=0, atol=1e-5)


@pytest.mark.parametrize("backend", MUON)
def test_muon_learns(results: list[Result], backend: str) -> None:
    (result,) = of(results, backend=backend, optimizer="muon", mixed_precision="no")
    rank = ok(result).ranks[0]
    losses = (*rank.warmup_losses, *rank.losses)
    assert fmean(losses[-10:]) < 0.7 * fmean(losses[:10])


def test_muon_keeps_fp32_masters_and_state_under_bf16(results: list[Result]) -> None:
    found = of(results, optimizer="muon", mixed_precision="bf16")
    assert {result.attempt.cell.backend for result in found} == {"ddp", "fsdp2"}
    for rank in (rank for result in found for rank in ok(result).ranks):
        assert (rank.regime.masters_dtype, rank.regime.optimizer_dtype) == ("float32", "float32")
        assert rank.regime.matmul_dtype == "bfloat16"


def test_a_report_sets_muon_beside_adamw(run: Path) -> None:
    """Step time and memory in the raw matrix, and a ratio for each backend that ran both."""
    output = reading("report", "--full", str(run), "--compare", "optimizer")
    assert "optimizer A" in output
    compared = [line for line in output.splitlines() if line.startswith("|") and "muon" in line and "adamw" in line]
    assert compared, output
    (header,) = [line for line in output.splitlines() if line.startswith("|") and "global batch" in line]
    assert "step ms" in header
    assert "peak allocated" in header


# --- compilation ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("backend", "how"), COMPILED)
def test_compiled_steps_have_no_graph_breaks(results: list[Result], backend: str, how: str) -> None:
    (result,) = of(results, backend=backend, compile=how)
    (plain,) = of(results, backend=backend, compile="none", optimizer="adamw", mixed_precision="bf16")
    for rank, uncompiled in zip(ok(result).ranks, ok(plain).ranks, strict=True):
        assert rank.compilation.graph_breaks == {}
        assert rank.compilation.graphs >= 1
        assert rank.compilation.graphs_while_measured == 0
        assert 0 < rank.compilation.compile_s < rank.warmup_s
        assert uncompiled.compilation is None
        assert rank.losses == pytest.approx(uncompiled.losses, rel=0.05)


def test_compile_time_is_shown(run: Path, results: list[Result]) -> None:
    (result,) = of(results, backend="fsdp2", compile="unit")
    output = reading("show", result.attempt.cell.id, str(run))
    assert "## Compilation" in output
    assert "compile ms" in output


# --- checkpoints ----------------------------------------------------------------------------------------------------


def test_training_goes_on_from_a_checkpoint_under_every_backend(results: list[Result]) -> None:
    measured = [result for result in results if isinstance(result.outcome, Ok)]
    assert {result.attempt.cell.backend for result in measured} == set(BACKENDS)
    for result in measured:
        for rank in ok(result).ranks:
            saved = rank.checkpoint
            assert saved.resumed_losses == pytest.approx(saved.next_losses, rel=1e-6), result.attempt.cell.slug
            assert saved.next_losses[0] != saved.next_losses[1]
            assert saved.save_s > 0 < saved.load_s
            # fp32 weights or masters, and the optimizer's state of them; SGD keeps none.
            per_parameter = {"adamw": 12, "muon": 8}.get(result.attempt.cell.train.optimizer, 2)
            assert saved.stored_bytes > per_parameter * rank.regime.parameters


def test_checkpoints_are_removed_and_reported(run: Path, results: list[Result]) -> None:
    assert not list(run.glob("attempts/*/*/checkpoint"))
    assert "## Checkpoints" in (run / "report-full.md").read_text()
    assert not [doubt for doubt in doubts(summarize(results)) if "checkpoint" in doubt.reason]
