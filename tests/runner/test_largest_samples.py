"""The scan of a data set for its largest samples."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from transformers import BatchEncoding

from bench.runner.largest_samples import scan


class Counted:
    """Samples made by a function of their index."""

    def __init__(self, total, sample):
        self.total, self.sample, self.asked = total, sample, []

    def __len__(self):
        return self.total

    def __getitem__(self, index):
        self.asked.append(index)
        return self.sample(index)


def test_the_largest_of_all_samples_come_first():
    found = scan([torch.zeros(length) for length in (3, 9, 1, 8)])
    assert (found.samples, found.scanned, found.smallest, found.largest) == (4, 4, 1, 9)
    assert found.indices == (1, 3, 0, 2)


def test_samples_of_one_shape_name_none():
    found = scan([{"x": torch.zeros(2, 3), "text": "one"}, {"x": torch.ones(2, 3), "text": "another"}])
    assert (found.scanned, found.smallest, found.largest, found.indices) == (2, 6, 6, ())


def test_the_longest_in_each_dimension_are_among_the_first():
    """Padded to 4 x 50, the last two are larger than the first two, which hold more values."""
    found = scan([torch.zeros(20, 20), torch.zeros(19, 20), torch.zeros(50, 2), torch.zeros(2, 60)])
    assert found.indices == (0, 2, 3, 1)


def test_a_rare_large_sample_is_found_where_it_is_cheap_to_look():
    found = scan(Counted(2000, lambda index: torch.zeros(1024 if index == 1993 else 32)), alike_s=60)
    assert (found.scanned, found.largest, found.indices[0]) == (2000, 1024, 1993)


def test_a_scan_ends_with_its_time_and_says_what_it_saw():
    samples = Counted(2**40, lambda index: torch.zeros(3))
    found = scan(samples, alike_s=0.01)
    assert found.scanned == len(samples.asked) < found.samples == 2**40
    halves = {index * 2 // 2**40 for index in samples.asked[:2]}
    assert halves == {0, 1}, "spread over the data set"


def test_a_scan_changes_no_random_number():
    def drawn():
        return torch.rand(1).item(), random.random()

    torch.manual_seed(1)
    random.seed(1)
    expected = drawn()
    torch.manual_seed(1)
    random.seed(1)
    scan(Counted(5, lambda index: (torch.rand(2), random.random())))
    assert drawn() == expected


def test_lists_and_pictures_count_their_values():
    class Picture:
        size = (4, 5)

    assert scan([([1, 2, 3], Picture(), "text")]).largest == 23


@dataclass
class Sentence:
    tokens: torch.Tensor


@pytest.mark.parametrize(
    "sample",
    [
        lambda length: BatchEncoding({"input_ids": torch.zeros(length)}),
        lambda length: Sentence(torch.zeros(length)),
        lambda length: torch.nested.nested_tensor([torch.zeros(length), torch.zeros(1)], layout=torch.jagged),
        lambda length: "a" * length,
    ],
    ids=["mapping", "dataclass", "nested", "text"],
)
def test_samples_in_any_container_have_a_size(sample: Callable[[int], Any]) -> None:
    sizes = scan([sample(2), sample(5), sample(3)])
    assert sizes.indices[0] == 1
    assert sizes.smallest < sizes.largest


def test_names_beside_tensors_have_no_size() -> None:
    assert scan([{"x": torch.zeros(3), "name": name} for name in ("one", "three")]).indices == ()
