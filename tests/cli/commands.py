"""What tests of commands call."""

from pathlib import Path

from examples import MACHINE, MATRIX_YAML, result
from typer.testing import CliRunner, Result

from bench.cli.app import app
from bench.records.outcome import Result as Record
from bench.records.plan import RunPlan
from bench.store.run_folder import Store

MATRICES = Path(__file__).parents[2] / "matrices"
QUICKSTART = str(MATRICES / "quickstart.yaml")
ALL_EIGHT = str(MATRICES / "backends.yaml")


def bench(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)])


def full_report(*arguments: str | Path) -> str:
    done = bench("report", "--full", *arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


def stored(folder: Path, batch: int = 2) -> Record:
    """The result of one attempt, written as a run into the folder."""
    record = result(batch=batch)
    store = Store(folder)
    with store.open(MACHINE, [record.attempt.cell], MATRIX_YAML, plan=RunPlan(matrix="example", cells=())):
        store.begin(record.attempt)
        store.finish(record)
    return record
