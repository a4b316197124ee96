"""Ranks that disagree about a checkpoint; and what each backend compiles."""

from pathlib import Path

import pytest
from table import FaultBench

from bench.backends import forbids
from bench.records.outcome import Failed, Hang, Ok, Outcome


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Outcome]]:
    bench = FaultBench(tmp_path_factory.mktemp("saves"))
    matrix = bench.matrix(
        workload={"name": "saves:Saves"},
        matrix={"backend": ["ddp", "fsdp2"], "saves": ["only_rank_0", "full_on_rank_0", "all"], "batch": 2},
        measure={"warmup_steps": 1, "steps": 3, "checkpoint": True},
        launch={"hang_after_s": 8},
    )
    bench("run", matrix, "--out", str(bench.folder / "run"), expect=1)
    bench.assert_gone()
    results = {f"{result.axes['backend']} {result.axes['saves']}": result.outcome for result in bench.results()}
    return bench.folder / "run", results


@pytest.mark.parametrize("backend", ["ddp", "fsdp2"])
def test_a_save_that_only_rank_0_makes_is_no_silent_hang(saved: tuple[Path, dict[str, Outcome]], backend: str) -> None:
    outcome = saved[1][f"{backend} only_rank_0"]
    assert isinstance(outcome, Hang | Failed), outcome
    if isinstance(outcome, Hang):
        assert "rank 0" in outcome.reason
    assert not list(saved[0].glob("attempts/*/*/checkpoint"))


@pytest.mark.parametrize("backend", ["ddp", "fsdp2"])
def test_a_disk_that_only_rank_0_finds_full_stops_all_ranks(
    saved: tuple[Path, dict[str, Outcome]], backend: str
) -> None:
    outcome = saved[1][f"{backend} full_on_rank_0"]
    assert isinstance(outcome, Failed), outcome
    assert outcome.fault == "disk"
    assert "a checkpoint may take" in outcome.reason
    assert outcome.phase == "warmup"


@pytest.mark.parametrize("backend", ["ddp", "fsdp2"])
def test_ranks_that_agree_save(saved: tuple[Path, dict[str, Outcome]], backend: str) -> None:
    assert isinstance(saved[1][f"{backend} all"], Ok)


# --- compilation ----------------------------------------------------------------------------------------------------

COMPILED = [
    ("single", "unit"), ("single", "model"), ("ddp", "unit"), ("ddp", "model"), ("fsdp", "unit"),
    ("zero1", "model"), ("zero2", "unit"), ("zero2", "model"), ("zero3", "unit"),
]  # fmt: skip
"""The others are in tests/e2e/test_training.py or refused, see test_refusals.py."""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Outcome]:
    bench = FaultBench(tmp_path_factory.mktemp("compiled"))
    include = [{"backend": backend, "compile": how, "batch": 2} for backend, how in COMPILED]
    matrix = bench.matrix(workload={"name": "dumps:Dumps"}, matrix={}, include=include)
    bench("run", matrix, "--out", str(bench.folder / "run"))
    cells = [(result.attempt.cell, result.outcome) for result in bench.results()]
    return {(cell.backend, cell.train.compile): outcome for cell, outcome in cells}


@pytest.mark.parametrize(("backend", "how"), COMPILED)
def test_what_is_not_refused_compiles(compiled: dict[tuple[str, str], Outcome], backend: str, how: str) -> None:
    outcome = compiled[backend, how]
    assert isinstance(outcome, Ok), outcome
    for rank in outcome.ranks:
        assert rank.compilation.graphs >= 1
        assert rank.compilation.graphs_while_measured == 0


class Unrefused(FaultBench):
    module = "unrefused"


@pytest.mark.parametrize("backend", ["fsdp", "zero3"])
def test_the_hooks_that_gather_weights_break_the_graph_of_a_model(tmp_path: Path, backend: str) -> None:
    """Why it is refused. Of FSDP2, tests/runner/test_compiled.py shows the graphs."""
    bench = Unrefused(tmp_path)
    matrix = bench.matrix(workload={"name": "dumps:Dumps"}, matrix={"backend": backend, "compile": "model", "batch": 2})
    bench("run", matrix, "--out", str(tmp_path / "run"))
    (result,) = bench.results()
    assert forbids(result.attempt.cell, "cpu")
    assert isinstance(result.outcome, Ok), result.outcome
    for rank in result.outcome.ranks:
        assert sum(rank.compilation.graph_breaks.values()) > 0
