"""The count of torch's tensors on a CPU, over its own allocator."""

from typing import Any

import pytest
import torch

from bench.runner import tensors

MIB = 2**20


def test_the_peak_has_what_lives_on_and_what_a_step_frees_again(monkeypatch: pytest.MonkeyPatch) -> None:
    job: Any = None
    monkeypatch.setattr(tensors, "step", lambda *_: torch.ones(3 * MIB, dtype=torch.uint8).sum())
    before = tensors.peak_bytes(job, iter(()))
    with tensors.counting(True):
        kept = torch.zeros(5 * MIB, dtype=torch.uint8)
    uncounted = torch.zeros(7 * MIB, dtype=torch.uint8)
    after = tensors.peak_bytes(job, iter(()))
    assert before is not None
    assert after is not None
    assert before >= 3 * MIB
    assert after - before == kept.nbytes
    assert uncounted.nbytes > 0


def test_nothing_is_counted_that_is_not_wanted() -> None:
    flag = tensors._flag()
    assert flag is not None
    with tensors.counting(False):
        assert not flag.value
    with tensors.counting(True):
        assert flag.value
    assert not flag.value
