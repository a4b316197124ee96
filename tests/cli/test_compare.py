"""`bench compare` as a gate."""

from pathlib import Path

import pytest
from commands import bench, stored
from examples import result
from examples import stored as run_of

from bench.records.outcome import Failed

pytestmark = pytest.mark.usefixtures("elsewhere")


def test_a_gate_does_not_pass_what_cannot_be_read(tmp_path: Path) -> None:
    for run in ("base", "head"):
        for batch in (1, 2):
            stored(tmp_path / run, batch)
    torn = next((tmp_path / "head").glob("attempts/*/b2/result.json"))
    torn.write_text("{")
    done = bench("compare", "base", "head", "--fail-on-regression", "5%")
    assert done.exit_code == 1
    assert f"regression: {torn.relative_to(tmp_path / 'head')} cannot be read: " in done.stderr


def test_a_gate_that_has_nothing_to_judge_does_not_pass(tmp_path: Path) -> None:
    failed = run_of(tmp_path / "failed", [result(Failed(rank=0, phase="start", reason="no"))])
    assert bench("compare", failed, failed).exit_code == 0
    gate = bench("compare", failed, failed, "--fail-on-regression", "5%", "--unclear", "pass")
    assert gate.exit_code == 1
    assert gate.stderr == "no attempt was measured in both runs: the gate has nothing to judge\n"
