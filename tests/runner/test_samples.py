"""The batches of one rank: an endless loader over the workload's samples, which are checked first."""

from collections.abc import Iterator
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from examples import cell
from torch.utils.data import IterableDataset, TensorDataset

from bench.errors import InputError
from bench.runner.samples import loader_of, samples_of

CELL = cell("single", num_processes=1)


def task(samples: Any) -> Any:
    return SimpleNamespace(dataset=lambda: samples)


@pytest.mark.parametrize("batch", [1, 2, 5, 7])
def test_a_dataset_starts_again_after_its_last_sample(batch: int) -> None:
    samples = samples_of(CELL, task(list(range(5))))
    loaded = islice(iter(loader_of(CELL, samples, Accelerator(cpu=True), batch)), 4)
    assert torch.cat(list(loaded)).tolist() == [index % 5 for index in range(4 * batch)]


def test_a_seed_is_given_to_a_dataset_that_takes_one() -> None:
    assert list(samples_of(CELL, SimpleNamespace(dataset=lambda seed: [seed]))) == [CELL.measure.seed]  # type: ignore


def test_samples_that_torch_draws_at_once_are_the_same_in_each_process() -> None:
    drawing: Any = SimpleNamespace(dataset=lambda: torch.randn(3, 2))
    first = samples_of(CELL, drawing)
    torch.randn(7)
    assert torch.equal(first, samples_of(CELL, drawing))  # type: ignore[arg-type]


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter([1])


class SizedStream(Stream):
    def __len__(self) -> int:
        return 1


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        ([], "is empty"),
        (TensorDataset(torch.ones(0, 2)), "is empty"),
        (Stream(), "is a Stream without a length or an index"),
        (SizedStream(), "is a SizedStream without"),
        ({"x": torch.ones(2)}, "is a dict without"),
    ],
)
def test_samples_that_cannot_be_repeated_are_said(samples: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        samples_of(CELL, task(samples))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_only_copies_to_a_gpu_are_pinned_and_do_not_wait(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    accelerator = Accelerator(cpu=True)
    monkeypatch.setattr(type(accelerator), "device", torch.device(device))
    monkeypatch.setattr(accelerator, "prepare_data_loader", lambda plain, **_: plain)
    loader: Any = loader_of(CELL, samples_of(CELL, task([1])), accelerator, 1)
    assert loader.pin_memory == accelerator.non_blocking == (device == "cuda")
