"""The batches of one rank: an endless loader over the workload's samples, which are checked first."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from accelerate import Accelerator
from examples import cell
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from transformers import BatchEncoding, BatchFeature
from transformers.utils import ModelOutput

from bench.errors import InputError, SamplesError
from bench.runner.samples import loader_of, samples_of, stacked

CELL = cell("single", num_processes=1)


def task(samples: Any) -> Any:
    return SimpleNamespace(dataset=lambda: samples)


@pytest.mark.parametrize("batch", [1, 2, 5, 7])
def test_a_dataset_starts_again_after_its_last_sample(batch: int) -> None:
    samples = samples_of(CELL, task(list(range(5))))
    loaded = islice(iter(loader_of(CELL, samples, Accelerator(cpu=True), batch)), 4)
    assert torch.cat(list(loaded)).tolist() == [index % 5 for index in range(4 * batch)]


def test_a_seed_is_given_to_a_dataset_that_takes_one() -> None:
    samples = samples_of(CELL, SimpleNamespace(dataset=lambda seed: [seed]))  # type: ignore[arg-type]
    assert samples.dataset == [CELL.measure.seed]


def test_samples_that_torch_draws_at_once_are_the_same_in_each_process() -> None:
    drawing: Any = SimpleNamespace(dataset=lambda: torch.randn(3, 2))
    first: Any = samples_of(CELL, drawing).dataset
    torch.randn(7)
    assert torch.equal(first, samples_of(CELL, drawing).dataset)  # type: ignore[arg-type]


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
    loader: Any = loader_of(CELL, samples_of(CELL, task([1])), accelerator, 1)._loader  # type: ignore[attr-defined]
    assert loader.pin_memory == accelerator.non_blocking == (device == "cuda")


LENGTHS = [torch.arange(1, 4), torch.arange(1, 6)]


def padded(samples: list[Any]) -> dict[str, Any]:
    """As people write it: pads to the longest sample, and keeps one dict a sample."""
    return {
        "input_ids": torch.nn.utils.rnn.pad_sequence(samples, batch_first=True),
        "labels": [{"boxes": one[:, None].float()} for one in samples],
    }


class Method:
    def dataset(self) -> Any:
        return LENGTHS

    def collate(self, samples: list[Any]) -> dict[str, Any]:
        return padded(samples)


class Attribute(Method):
    collate = padded


class WithCollate(list[Any]):
    collate_fn = staticmethod(padded)


def batch_of(task: Any, batch: int = 2, **measure: Any) -> Any:
    one = CELL.model_copy(update={"measure": CELL.measure.model_copy(update=measure)})
    return next(iter(loader_of(one, samples_of(one, task), Accelerator(cpu=True), batch)))


@pytest.mark.parametrize(
    "task",
    [
        SimpleNamespace(dataset=lambda: LENGTHS, collate=padded),
        Method(),
        Attribute(),
        SimpleNamespace(dataset=lambda: WithCollate(LENGTHS)),
        SimpleNamespace(dataset=lambda: DataLoader(LENGTHS, batch_size=1, collate_fn=padded)),  # type: ignore[arg-type]
        SimpleNamespace(dataset=lambda: WithCollate(LENGTHS), collate=padded),
    ],
    ids=["function", "method", "attribute", "of samples", "loader", "both"],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_a_workload_may_collate_samples_of_many_lengths(task: Any, workers: int) -> None:
    batch = batch_of(task, dataloader_workers=workers)
    assert batch["input_ids"].tolist() == [[1, 2, 3, 0, 0], [1, 2, 3, 4, 5]]
    assert [len(one["boxes"]) for one in batch["labels"]] == [3, 5]


def test_of_a_loader_without_a_collate_function_torch_makes_the_batch() -> None:
    for size in (1, None):
        samples: Any = DataLoader([1, 2, 3], batch_size=size)  # type: ignore[arg-type]
        assert batch_of(task(samples)).tolist() == [1, 2]


@dataclass
class Sample:
    x: Tensor
    weight: float | None = None


class Named(NamedTuple):
    x: Tensor
    y: int


ONE = torch.ones(2)


@pytest.mark.parametrize(
    ("sample", "batch"),
    [
        ({"x": ONE, "text": "a", "none": None}, {"x": ONE, "text": ["a", "a"], "none": None}),
        (BatchEncoding({"x": ONE}), {"x": ONE}),
        (BatchFeature({"x": ONE}), {"x": ONE}),
        (ModelOutput(x=ONE), {"x": ONE}),
        (Sample(ONE), {"x": ONE, "weight": None}),
        ({"inner": {"x": ONE}}, {"inner": {"x": ONE}}),
        (Named(ONE, 1), (ONE, torch.tensor([1, 1]))),
        ((ONE, "a", None), (ONE, ("a", "a"), None)),
    ],
)
def test_samples_are_stacked_part_by_part(sample: Any, batch: Any) -> None:
    def same(one: Any, other: Any) -> bool:
        if isinstance(other, dict):
            return one.keys() == other.keys() and all(same(one[key], other[key]) for key in other)
        if isinstance(other, Tensor):
            return torch.equal(one, torch.stack([other, other]) if other is ONE else other)
        return len(one) == len(other) and all(map(same, one, other)) if isinstance(other, tuple) else one == other

    assert same(stacked([sample, sample]), batch)


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        ([{"ids": one} for one in LENGTHS], r"ids is (3,) in one sample and (5,) in another"),
        ([(1, one) for one in LENGTHS], r"[1] is (3,) in one sample and (5,) in another"),
        (LENGTHS, r"a sample is (3,) in one sample and (5,) in another"),
        ([{"a": {"b": [one]}} for one in LENGTHS], r"a.b[0] is (3,) in one sample and (5,) in another"),
        ([{"ids": [1, 2]}, {"ids": [1]}], "ids is a list of 2 in one sample and a list of 1 in another"),
        ([{"x": 1}, {"y": 1}], "a sample is a dict with x in one sample and a dict with y in another"),
        ([{"x": ONE}, {"x": None}], "x is (2,) in one sample and a NoneType in another"),
        ([{"x": object()}] * 2, "x is an object, which torch cannot stack"),
    ],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_samples_that_cannot_be_stacked_are_said_in_words(samples: list[Any], words: str, workers: int) -> None:
    with pytest.raises(SamplesError) as raised:
        batch_of(task(samples), dataloader_workers=workers)
    assert words in raised.value.problem
    assert "collate" in str(raised.value)
