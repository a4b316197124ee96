"""The count of torch's tensors on a CPU, over its own allocator."""

import torch

from bench.runner import tensors

MIB = 2**20


def step() -> torch.Tensor:
    return torch.ones(3 * MIB, dtype=torch.uint8).sum()


def test_the_peak_has_what_lives_on_and_what_a_step_frees_again() -> None:
    before = tensors.peak_bytes(step)
    with tensors.counting(True):
        kept = torch.zeros(5 * MIB, dtype=torch.uint8)
        with tensors.uncounted():
            samples = torch.zeros(9 * MIB, dtype=torch.uint8)
    uncounted = torch.zeros(7 * MIB, dtype=torch.uint8)
    after = tensors.peak_bytes(step)
    assert before is not None
    assert after is not None
    assert before >= 3 * MIB
    assert after - before == kept.nbytes
    assert uncounted.nbytes + samples.nbytes == 16 * MIB


def test_nothing_is_counted_that_is_not_wanted() -> None:
    flag = tensors._flag()
    assert flag is not None
    with tensors.counting(False):
        assert not flag.value
    with tensors.counting(True):
        assert flag.value
    assert not flag.value
