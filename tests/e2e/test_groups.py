"""FSDP2's groups besides the units, on two real ranks: losses, bytes and memory of embeddings, last norm and head."""

import pytest
from grouped import VOCABULARY, WIDTH
from harness import HERE, Bench, ok

from bench.backends.forecast import forecast
from bench.records.outcome import Result
from bench.report.communication import communication
from bench.report.plan import check
from bench.report.summary import summarize
from bench.runner.program import trace
from bench.store.run_folder import Store

MEASURE = {"warmup_steps": 2, "steps": 3, "phase_steps": 1, "count_tensors": True}
KINDS = ("shared", "llama", "tied_llama")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Result]:
    """By kind and backend."""
    bench = Bench(tmp_path_factory.mktemp("groups"))
    cells = {"kind": list(KINDS), "backend": ["ddp", "fsdp2"], "batch": 2}
    matrix = bench.matrix(workload={"name": "grouped:grouped"}, matrix=cells, measure=MEASURE)
    bench("run", matrix, "--out", str(bench.folder / "run"))
    bench.assert_gone()
    found = Store(bench.folder / "run").results()
    return {(str(one.axes["kind"]), one.attempt.cell.backend): one for one in found}


@pytest.mark.parametrize("kind", KINDS)
def test_losses_are_those_of_ddp(results: dict[tuple[str, str], Result], kind: str) -> None:
    sharded, whole = (ok(results[kind, backend]).ranks[0] for backend in ("fsdp2", "ddp"))
    assert sharded.regime.sharded_parameters == sharded.regime.parameters
    assert sharded.losses == pytest.approx(whole.losses, rel=0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_the_recorder_confirms_the_formula_of_bytes(results: dict[tuple[str, str], Result], kind: str) -> None:
    (cell,) = summarize([results[kind, "fsdp2"]]).cells
    sent = communication(cell)
    assert {one.operation for one in sent} == {"all_reduce", "all_gather"}
    for one in sent:
        assert one.ratio == pytest.approx(1, rel=0.01), one


@pytest.mark.parametrize("kind", KINDS)
def test_the_plan_is_what_was_counted(
    results: dict[tuple[str, str], Result], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    result = results[kind, "fsdp2"]
    cell = result.attempt.cell
    planned = forecast(cell, trace(cell, "cpu", (2, 4)))
    assert planned.unit_parameters == ok(result).ranks[0].unit_parameters
    (row,) = check(summarize([result]), {cell.id: planned})
    copy = VOCABULARY * WIDTH * 4  # gloo's of a table in fp32 may live on while the next one is made
    beyond = row.measured_bytes - row.planned_bytes
    assert min(abs(beyond), abs(beyond - copy)) <= 0.1 * row.measured_bytes
