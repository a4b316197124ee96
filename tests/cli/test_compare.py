"""`bench compare` as a gate."""

from pathlib import Path

import pytest
from examples import MACHINE, MATRIX_YAML, result
from typer.testing import CliRunner, Result

from bench.cli.app import app
from bench.records.outcome import Result as Record
from bench.store.run_folder import Store

ROOT = Path(__file__).parents[2]
QUICKSTART = str(ROOT / "matrices" / "quickstart.yaml")
ALL_EIGHT = str(ROOT / "matrices" / "backends.yaml")
pytestmark = pytest.mark.usefixtures("elsewhere")


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def stored(folder: Path, batch: int = 2) -> Record:
    record = result(batch=batch)
    store = Store(folder)
    with store.open(MACHINE, [record.attempt.cell], MATRIX_YAML):
        store.begin(record.attempt)
        store.finish(record)
    return record


def test_a_gate_does_not_pass_what_cannot_be_read(tmp_path: Path) -> None:
    for run in ("base", "head"):
        for batch in (1, 2):
            stored(tmp_path / run, batch)
    torn = next((tmp_path / "head").glob("attempts/*/b2/result.json"))
    torn.write_text("{")
    done = bench("compare", "base", "head", "--fail-on-regression", "5%")
    assert done.exit_code == 1
    assert f"regression: {torn.relative_to(tmp_path / 'head')} cannot be read: " in done.stderr
