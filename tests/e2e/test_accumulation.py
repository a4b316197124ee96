"""Micro-batches of one optimizer step: the same training as one large batch, with the traffic of the formulas."""

from pathlib import Path

import pytest
from kept import KeptBench

from bench.backends import BACKENDS
from bench.records.outcome import Ok, Result, Skipped
from bench.report.communication import communication
from bench.report.summary import summarize
from bench.store.run_folder import Store

SAMPLES = 4
"""Of each rank, in one optimizer step."""
SPLITS = {1: 4, 2: 2, 4: 1}
"""Batch per rank, by micro-batches."""
BF16 = 0.02
"""By which share losses may differ in bf16, after seven steps."""
REDUCES_ALWAYS = ("zero2", "zero3")
SYNC = {name: "last" if name in REDUCES_ALWAYS else "each" for name in BACKENDS}
"""The value that is not what null stands for."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    bench = KeptBench(tmp_path_factory.mktemp("accumulation"))
    matrix = bench.matrix(
        matrix={
            "backend": list(BACKENDS),
            "accumulate": list(SPLITS),
            "accumulate_sync": [None, "last", "each"],
            "batch": list(SPLITS.values()),
        },
        exclude=[
            *({"accumulate": several, "batch": batch} for several in SPLITS for batch in {1, 2, 4} - {SPLITS[several]}),
            {"accumulate": 1, "accumulate_sync": "last"},
            {"accumulate": 1, "accumulate_sync": "each"},
            {"accumulate": 2, "accumulate_sync": "last"},
            {"accumulate": 2, "accumulate_sync": "each"},
            {"backend": "single", "batch": 4, "accumulate": 1},
        ],
        include=[{"backend": "single", "accumulate": 1, "batch": 2 * SAMPLES}],
        launch={"num_processes": 2, "mixed_precision": "no"},
        train={"learning_rate": 0.01},
        measure={"warmup_steps": 2, "steps": 4, "phase_steps": 1, "launches": 1},
    )
    run = bench.folder / "run"
    bench("run", matrix, "--out", str(run))
    return Store(run).results()


@pytest.mark.long
def test_in_bf16_losses_are_those_of_one_large_batch_within_its_rounding(tmp_path: Path) -> None:
    """bf16 has eight bits, so a gradient that is rounded after each micro-batch differs by 2**-9 of itself."""
    bench = KeptBench(tmp_path)
    matrix = bench.matrix(
        matrix={"backend": list(BACKENDS), "accumulate": [1, 4], "batch": [1, 4]},
        exclude=[{"accumulate": 1, "batch": 1}, {"accumulate": 4, "batch": 4}],
        launch={"num_processes": 2, "mixed_precision": "bf16"},
        train={"learning_rate": 0.01},
        measure={"warmup_steps": 2, "steps": 4, "phase_steps": 1, "launches": 1},
    )
    bench("run", matrix, "--out", str(tmp_path / "run"))
    found = Store(tmp_path / "run").results()
    for backend in BACKENDS:
        one, several = (
            losses(result)
            for several in (1, 4)
            for result in found
            if (result.attempt.cell.backend, result.attempt.cell.train.accumulate) == (backend, several)
        )
        assert one[0] != pytest.approx(one[-1], rel=2 * BF16)
        assert several == pytest.approx(one, rel=BF16), backend


def losses(result: Result) -> tuple[float, ...]:
    assert isinstance(result.outcome, Ok), result.outcome
    rank = result.outcome.ranks[0]
    return (*rank.warmup_losses, *rank.losses)


def of(results: list[Result], backend: str, accumulate: int, sync: str | None = None) -> Result:
    (found,) = (
        result
        for result in results
        if (result.attempt.cell.backend, result.attempt.cell.train.accumulate) == (backend, accumulate)
        and result.attempt.cell.train.accumulate_sync == sync
        and (backend, result.attempt.batch_global) != ("single", SAMPLES)
    )
    return found


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "single"])
@pytest.mark.parametrize(("accumulate", "sync"), [(1, None), (2, None), (4, None), (4, "last"), (4, "each")])
def test_losses_are_those_of_one_large_batch(
    results: list[Result], backend: str, accumulate: int, sync: str | None
) -> None:
    """Seven steps in fp32: each shows the weights after the steps before it."""
    result = of(results, backend, accumulate, sync)
    if isinstance(result.outcome, Skipped):
        assert sync == ("last" if backend in REDUCES_ALWAYS else "each")
        assert backend in (*REDUCES_ALWAYS, "zero1")
        assert f"train.accumulate_sync: {sync} does not work with {backend}" in result.outcome.reason
        return
    alone = losses(of(results, "single", 1))
    assert len(alone) == 7
    assert alone[0] != pytest.approx(alone[-1], rel=1e-3)
    assert losses(result) == pytest.approx(alone, rel=1e-5)


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "single"])
def test_throughput_counts_all_micro_batches(results: list[Result], backend: str) -> None:
    result = of(results, backend, 4)
    assert isinstance(result.outcome, Ok)
    (row,) = summarize([result]).rows
    step_s = max(sum(rank.step_times_s) / len(rank.step_times_s) for rank in result.outcome.ranks)
    assert row.batch_global == 2 * SAMPLES
    assert row.rate == pytest.approx(2 * SAMPLES / step_s)


@pytest.mark.parametrize("accumulate", [2, 4])
@pytest.mark.parametrize("backend", ["ddp", "fsdp", "fsdp_grad_op", "fsdp2", "zero1", "zero2"])
def test_bytes_are_those_of_the_formula(results: list[Result], backend: str, accumulate: int) -> None:
    for sync in (None, "each") if accumulate == 4 and not backend.startswith("zero") else (None,):
        (cell,) = summarize([of(results, backend, accumulate, sync)]).cells
        sent = [one for one in communication(cell) if one.formula_bytes]
        assert sent
        assert not any(one.upper_bound for one in sent)
        assert [one.ratio for one in sent] == pytest.approx([1.0] * len(sent), rel=0.01)


def test_zero3_gathers_no_more_than_the_formula(results: list[Result]) -> None:
    (cell,) = summarize([of(results, "zero3", 4)]).cells
    by_operation = {one.operation: one for one in communication(cell)}
    assert by_operation["all_gather"].upper_bound
    assert (by_operation["all_gather"].ratio or 2.0) <= 1.01
    assert by_operation["all_reduce"].ratio == pytest.approx(1.0, rel=0.01)


def test_the_phases_add_up_over_micro_batches(results: list[Result]) -> None:
    for result in results:
        if isinstance(result.outcome, Ok):
            for rank in result.outcome.ranks:
                assert {len(times) for times in rank.phase_times_s.values()} == {1}
                assert rank.phase_times_s["forward"][0] > 0


def test_the_two_ways_to_reduce_are_two_cells(results: list[Result]) -> None:
    ids = {result.attempt.cell.id for result in results}
    assert len(ids) == len({(r.attempt.cell.id, r.attempt.batch_per_rank) for r in results}) == len(results)


def test_the_row_says_how_often_gradients_accumulate(results: list[Result], tmp_path: Path) -> None:
    found = [of(results, "ddp", accumulate) for accumulate in SPLITS]
    assert "accumulate" in summarize(found).columns
