"""Adapters of peft in models of transformers on all backends: three minutes for each model."""

import re
import shutil
from pathlib import Path

import pytest
import yaml
from families import workload
from harness import HERE, Bench, reading

from bench.backends import BACKENDS
from bench.records.outcome import Ok, Result
from bench.report.summary import summarize
from bench.report.theory import theory_of
from bench.store.run_folder import Store

pytest.importorskip("peft")

RANK, WIDTH, INNER, LAYERS = 4, 32, 64, 2
ADAPTERS = {
    "llama": LAYERS * RANK * (2 * 2 * WIDTH + 2 * (WIDTH + WIDTH // 2) + 3 * (WIDTH + INNER)),
    "bert": LAYERS * RANK * (4 * 2 * WIDTH + 2 * (WIDTH + INNER)) + RANK * 2 * WIDTH,
}
"""As tests/workloads counts them by hand."""
WHOLE = ("single", "ddp")


@pytest.fixture(scope="module", params=ADAPTERS)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The model type and the folder of its run."""
    bench = Bench(tmp_path_factory.mktemp(request.param))
    shutil.copy(HERE / "told_state.py", bench.folder)
    file = bench.folder / "lora.yaml"
    matrix = {
        "workload": workload(request.param, lora={"r": RANK}),
        "matrix": {"backend": list(BACKENDS), "batch": 2},
        "train": {"optimizer": "told_state:Told"},
        "measure": {"warmup_steps": 2, "steps": 3, "phase_steps": 1, "launches": 1, "checkpoint": True},
    }
    file.write_text(yaml.safe_dump(matrix))
    bench.start("run", str(file), "--out", str(bench.folder / "run"), cwd=bench.folder).communicate()
    return request.param, bench.folder / "run"


def results(run: Path) -> dict[str, Result]:
    return {one.attempt.cell.backend: one for one in Store(run).results()}


@pytest.mark.long
def test_moments_are_those_of_the_adapters_alone(trained: tuple[str, Path]) -> None:
    """Two of four bytes for each, of all ranks together. ZeRO rounds each rank's part up."""
    model_type, run = trained
    assert len(results(run)) == len(BACKENDS)
    for backend, result in results(run).items():
        assert isinstance(result.outcome, Ok), (backend, result.outcome)
        ranks, copies = len(result.outcome.ranks), len(result.outcome.ranks) if backend in WHOLE else 1
        folder = Store(run).folder(result.attempt)
        told = [
            int(re.findall(r"moments: (\d+)", (folder / f"rank{rank}.log").read_text())[-1]) for rank in range(ranks)
        ]
        by_hand = 2 * 4 * copies * ADAPTERS[model_type]
        assert by_hand <= sum(told) <= (1.02 if backend.startswith("zero") else 1) * by_hand, backend


@pytest.mark.long
def test_what_is_trained_is_observed_and_told(trained: tuple[str, Path]) -> None:
    model_type, run = trained
    for backend, result in results(run).items():
        assert isinstance(result.outcome, Ok)
        (cell,) = summarize([result]).cells
        for rank in result.outcome.ranks:
            assert rank.regime.trained_parameters == ADAPTERS[model_type] < rank.regime.parameters
            assert rank.work is not None
            assert rank.checkpoint.apart < 1e-3, backend
        assert theory_of(cell).regime is not None
    assert f"({ADAPTERS[model_type]:,} trained)" in reading("report", "--full", str(run))


@pytest.mark.long
def test_all_backends_train_to_the_same_losses(trained: tuple[str, Path]) -> None:
    _, run = trained
    first: tuple[float, ...] | None = None
    for backend, result in results(run).items():
        assert isinstance(result.outcome, Ok)
        if backend != "single":  # with one rank, it has half of the samples
            losses = result.outcome.ranks[0].losses
            first = first or losses
            assert losses == pytest.approx(first, rel=0.02), backend
