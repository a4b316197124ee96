"""`bench audit`, without a launch."""

import pytest
from commands import QUICKSTART, bench
from examples import ok, result

from bench.cli.audit import batch_to_audit, training
from bench.records.outcome import Oom, Result

pytestmark = pytest.mark.usefixtures("elsewhere")
OOM = Oom(rank=0, phase="audit", reason="CUDA out of memory")


def test_an_audit_is_of_one_batch() -> None:
    done = bench("audit", "dataloader", QUICKSTART, "--select", "batch=1")
    assert done.exit_code == 2
    assert done.stderr == "bench: --select batch: an audit looks at one batch\n  choose it with --batch\n"


def test_training_at_the_audited_batch_is_taken_and_no_other() -> None:
    slow, fast = result(ok((0.1,) * 3, (0.2,) * 3), batch=2), result(batch=8)
    oom, short = result(OOM, batch=16), result(batch=4)
    short = short.model_copy(update={"attempt": short.attempt.model_copy(update={"short": True})})
    stored: list[Result] = [slow, fast, oom, short]
    found = {batch: training(stored, batch) for batch in (2, 4, 8, 16, None)}
    assert {batch: one and one.batch_per_rank for batch, one in found.items()} == {
        2: 2,
        4: None,
        8: 8,
        16: None,
        None: 8,
    }
    assert found[2] is not None
    assert found[2].samples_per_s_global == pytest.approx(2 * 2 / 0.2)
    assert found[2].dataload_wait_share == pytest.approx(0.1)
    assert training([oom]) is None
    assert training([]) is None


def test_the_audited_batch_is_the_fastest_stored_one_else_the_smallest_planned() -> None:
    slow, fast = result(ok((0.1,) * 3, (0.2,) * 3), batch=2), result(batch=8)
    assert batch_to_audit([slow, fast], [16, 4]) == 8
    assert batch_to_audit([], [16, 4]) == 4
    assert batch_to_audit([], []) == 1
