"""`bench audit`, without a launch."""

import pytest
from commands import QUICKSTART, bench

pytestmark = pytest.mark.usefixtures("elsewhere")


def test_an_audit_is_of_one_batch() -> None:
    done = bench("audit", "dataloader", QUICKSTART, "--select", "batch=1")
    assert done.exit_code == 2
    assert done.stderr == "bench: --select batch: an audit looks at one batch\n  choose it with --batch\n"
