"""The id of a cell: a hash of its content."""

from pathlib import Path

import pytest
from examples import cell

from bench.records.cell import Train
from bench.store.run_folder import Store

REPORTS = Path(__file__).parents[2] / "reports"
RUNS = sorted(folder.parent for folder in REPORTS.glob("*/attempts"))


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_stored_runs_are_found_by_the_ids_of_their_cells(run: Path) -> None:
    cells = {result.attempt.cell.slug for result in Store(run).results()}
    assert cells == {folder.name for folder in (run / "attempts").iterdir()}


def test_every_field_counts() -> None:
    assert cell(train=Train(fused=True)).id != cell(train=Train(fused=False)).id != cell().id
