"""What two real ranks of FSDP send in a step with checkpointing, by torch's flight recorder, against the formulas of
the report. tests/e2e/test_every_backend.py compares them on all backends without it."""

from pathlib import Path

import pytest
from policy import CHECKPOINTED, is_checkpointed

from bench.records.outcome import Ok, Result
from bench.report.communication import Sent, communication
from bench.report.rows import CellRows
from bench.report.summary import summarize
from bench.store.run_folder import Store


@pytest.fixture(scope="module")
def results(policy_run: Path) -> list[Result]:
    return [result for result in Store(policy_run).results() if is_checkpointed(result)]


@pytest.fixture(scope="module")
def cells(results: list[Result]) -> dict[str, CellRows]:
    return {cell.cell.backend: cell for cell in summarize(results).cells}


def sent(cells: dict[str, CellRows], backend: str) -> dict[str, Sent]:
    return {one.operation: one for one in communication(cells[backend])}


@pytest.mark.parametrize("backend", CHECKPOINTED)
def test_the_recorder_confirms_the_formula(cells: dict[str, CellRows], backend: str) -> None:
    operations = sent(cells, backend)
    assert set(operations) == {"all_reduce", "all_gather"}
    for one in operations.values():
        assert one.ratio == pytest.approx(1, rel=0.01), one


def test_units_that_run_twice_are_gathered_more_often(cells: dict[str, CellRows]) -> None:
    gathered = {backend: sent(cells, backend)["all_gather"].recorded_bytes or 0 for backend in CHECKPOINTED}
    whole = gathered["fsdp_grad_op"]
    assert 2 * whole < gathered["fsdp"] < 3 * whole < gathered["fsdp2"] < 4 * whole


def test_every_rank_stores_the_same(results: list[Result]) -> None:
    for result in results:
        assert isinstance(result.outcome, Ok), result.outcome
        records = [(rank.traffic, rank.unit_parameters, rank.work) for rank in result.outcome.ranks]
        traffic, units, work = records[0]
        assert records == [records[0]] * len(records)
        assert set(units) == {1, 2}  # the vision tower once, the layers for the prefix and for the suffix
        assert work.tokens_per_sample is not None
        assert traffic


def test_the_report_shows_it(policy_run: Path) -> None:
    written = (policy_run / "report-full.md").read_text()
    assert "## Bytes sent in a step" in written
    assert "## Utilization" in written
