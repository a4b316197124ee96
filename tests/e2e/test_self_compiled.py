"""Models that compile parts of themselves run as they are, and no graph is made while steps are timed.

FSDP2 hooks the blocks, so it meets all ways; under DDP, one compiled block is as good as another.
"""

from pathlib import Path

import pytest
from kept import KeptBench

from bench.records.outcome import Ok, Result
from bench.records.rank_outcome import RankOk

HOW = ["not at all", "wrapped", "in place", "method"]
CELLS = [*(("fsdp2", how) for how in HOW), ("ddp", "not at all"), ("ddp", "wrapped")]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    bench = KeptBench(tmp_path_factory.mktemp("self_compiled"))
    matrix = bench.matrix(
        workload={"name": "self_compiled:workload"},
        matrix={},
        include=[{"backend": backend, "how": how, "batch": 2} for backend, how in CELLS],
        measure={"warmup_steps": 2, "steps": 3, "phase_steps": 1},
    )
    bench("run", matrix, "--out", str(bench.folder / "run"), cwd=Path(__file__).parent)
    return bench.results()


def ranks(results: list[Result], backend: str, how: str) -> tuple[RankOk, ...]:
    [result] = [
        one
        for one in results
        if one.attempt.cell.backend == backend and one.attempt.cell.options.get("how", HOW[0]) == how
    ]
    assert isinstance(result.outcome, Ok), result.outcome
    return result.outcome.ranks


@pytest.mark.parametrize(("backend", "how"), [cell for cell in CELLS if cell[1] != HOW[0]])
def test_a_part_that_the_model_compiles_is_compiled_before_the_steps_that_are_timed(
    results: list[Result], backend: str, how: str
) -> None:
    for compiled, plain in zip(ranks(results, backend, how), ranks(results, backend, HOW[0]), strict=True):
        assert plain.compilation is None
        assert compiled.compilation.graphs > 0
        assert compiled.compilation.graphs_while_measured == 0
        assert compiled.losses == pytest.approx(plain.losses, rel=0.02)
        assert compiled.regime.matmul_shares == plain.regime.matmul_shares


@pytest.mark.parametrize(("backend", "how"), CELLS)
def test_nothing_that_trained_is_said_to_be_left_out(results: list[Result], backend: str, how: str) -> None:
    for rank in ranks(results, backend, how):
        assert not rank.coverage.without_gradient
        assert not rank.coverage.not_run
