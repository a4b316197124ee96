"""`bench audit`, without a launch."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from bench.cli.app import app

ROOT = Path(__file__).parents[2]
QUICKSTART = str(ROOT / "matrices" / "quickstart.yaml")
ALL_EIGHT = str(ROOT / "matrices" / "backends.yaml")
pytestmark = pytest.mark.usefixtures("elsewhere")


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def test_an_audit_is_of_one_batch() -> None:
    done = bench("audit", "dataloader", QUICKSTART, "--select", "batch=1")
    assert done.exit_code == 2
    assert done.stderr == "bench: --select batch: an audit looks at one batch\n  choose it with --batch\n"
