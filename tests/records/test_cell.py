"""The id of a cell: a hash of its content that newer versions of bench do not change."""

from pathlib import Path
from typing import Annotated

import pytest
from examples import cell

from bench.records.cell import LATER, Cell, Train
from bench.store.run_folder import Store

REPORTS = Path(__file__).parents[2] / "reports"
RUNS = sorted(folder.parent for folder in REPORTS.glob("*/attempts"))


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_cells_stored_before_keep_their_ids(run: Path) -> None:
    """A folder under attempts/ was named by the version of bench that measured it."""
    cells = {result.attempt.cell.slug for result in Store(run).results()}
    assert cells == {folder.name for folder in (run / "attempts").iterdir()}


class NewerTrain(Train):
    overlap: Annotated[bool, LATER] = True


class NewerCell(Cell):
    train: NewerTrain = NewerTrain()


def test_a_later_field_changes_the_id_unless_it_has_its_default() -> None:
    before = cell()
    content = before.model_dump()
    newer = NewerCell.model_validate(content)
    assert newer.id == before.id
    content["train"]["overlap"] = False
    assert NewerCell.model_validate(content).id != before.id


@pytest.mark.parametrize(("before", "now"), [(False, "none"), (True, "unit")])
def test_the_switch_that_compilation_was_keeps_its_cells(before: bool, now: str) -> None:
    """The ids are those that bench 0.1.0 gave to `compile: false` and `compile: true`."""
    content = cell().model_dump()
    content["train"]["compile"] = before
    stored = Cell.model_validate(content)
    assert stored.train.compile == now
    assert stored.id == {"none": "14fed8b29c", "unit": "eb85027559"}[now]


def test_a_field_of_the_first_version_always_counts() -> None:
    assert cell(train=Train(fused=True)).id != cell(train=Train(fused=False)).id != cell().id
