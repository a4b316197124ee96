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
        with tensors.counting(False):
            samples = torch.zeros(9 * MIB, dtype=torch.uint8)
    uncounted = torch.zeros(7 * MIB, dtype=torch.uint8)
    after = tensors.peak_bytes(step)
    assert before >= 3 * MIB
    assert after - before == kept.nbytes
    assert uncounted.nbytes + samples.nbytes == 16 * MIB


def test_what_outlives_a_step_counts_once_although_steps_before_were_not_counted() -> None:
    held = [torch.empty(0, dtype=torch.uint8)]

    def replaces() -> None:
        held[0] = torch.zeros(5 * MIB, dtype=torch.uint8)  # the earlier one is freed when this one exists

    before = tensors.peak_bytes(lambda: torch.ones(3 * MIB, dtype=torch.uint8))
    with tensors.counting(True):
        replaces()
    replaces()
    after = tensors.peak_bytes(replaces)
    assert after - before == (10 - 3) * MIB


def test_nothing_is_counted_that_is_not_wanted() -> None:
    flag = tensors._flag()
    assert flag is not None
    with tensors.counting(False):
        assert not flag.value
    with tensors.counting(True):
        assert flag.value
    assert not flag.value
