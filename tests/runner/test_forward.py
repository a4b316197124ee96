"""What a model's forward is given, in which dtype, and where its loss is found."""

import functools
from collections import UserDict
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import default_collate
from transformers import BatchEncoding, BatchFeature
from transformers.utils import ModelOutput

from bench.errors import InputError
from bench.runner.forward import Forward

X, Y = torch.arange(6.0).reshape(2, 3), torch.tensor([1, 0])


class Model(nn.Module):
    """Returns what a test wants, and keeps what it was given."""

    def __init__(self, output: Any = None) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 1)
        self.output, self.given = output, ()

    def take(self, *given: Any) -> Any:
        self.given = given
        return torch.ones(()) if self.output is None else self.output


class OfBatch(Model):
    def forward(self, batch: Any) -> Any:
        return self.take(batch)


class OfParts(Model):
    def forward(self, x: Any, y: Any = None) -> Any:
        return self.take(x, y)


class OfSome(Model):
    def forward(self, x: Any, y: Any = None, **more: Any) -> Any:
        return self.take(x, y, more)


class OfOptional(Model):
    def forward(self, x: Any = None, **more: Any) -> Any:
        return self.take(x, more)


class Raises(Model):
    def forward(self, x: Any) -> Any:
        if isinstance(self.output, Exception):
            raise self.output
        return x.sum()


class OfBatchAndMore(Model):
    def forward(self, batch: Any, **more: Any) -> Any:
        return self.take(batch, more)


def handing_on(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    return wrapper


class Decorated(Model):
    @handing_on
    def forward(self, x: Any, y: Any = None) -> Any:
        return self.take(x, y)


class Delegating(Model):
    """As an adapter's model hands on everything to the model in it."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.take(args, kwargs)


class OfKeywords(Model):
    def forward(self, **given: Any) -> Any:
        return self.take(given)


def run(model: Model, samples: list[Any], **task: Any) -> dict[str, Tensor]:
    """One pass over ``samples`` as one batch."""
    return Forward(SimpleNamespace(**task), model)(model, default_collate(samples))  # type: ignore[arg-type]


DICTS = [{"x": x, "y": y} for x, y in zip(X, Y, strict=True)]
PAIRS = list(zip(X, Y, strict=True))


def equal(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(other, Tensor) else one is other


@pytest.mark.parametrize(
    ("model", "samples", "given"),
    [
        (OfBatch(), list(X), (X,)),
        (OfParts(), DICTS, (X, Y)),
        (OfParts(), [{"x": x, "weight": x} for x in X], (X, None)),
        (OfParts(), PAIRS, (X, Y)),
        (OfParts(), list(X), (X, None)),
    ],
)
def test_forward_gets_the_parts_of_a_sample(model: Model, samples: list[Any], given: tuple[Any, ...]) -> None:
    run(model, samples)
    assert all(equal(one, other) for one, other in zip(model.given, given, strict=True)), model.given


MORE = [{**sample, "num_items_in_batch": 4, "text": "a"} for sample in DICTS]


@pytest.mark.parametrize("model", [OfSome(), Delegating(), OfOptional()])
def test_forward_gets_every_key_if_it_takes_any(model: Model) -> None:
    """Keys that it does not name are read from its ``**kwargs``, or handed on to the model that it wraps."""
    forward = Forward(SimpleNamespace(), model)  # type: ignore[arg-type]
    forward(model, default_collate(MORE))
    *_, more = model.given
    assert more["num_items_in_batch"].tolist() == [4, 4]
    assert more["text"] == ["a", "a"]
    assert forward.dropped == {}


@pytest.mark.parametrize("model", [OfParts(), Decorated()])
def test_keys_that_forward_cannot_take_are_known(model: Model) -> None:
    forward = Forward(SimpleNamespace(), model)  # type: ignore[arg-type]
    forward(model, default_collate(MORE))
    assert torch.equal(model.given[1], Y)
    assert forward.dropped == {"num_items_in_batch": "int64", "text": "list"}


def test_keys_that_a_loss_gets_are_not_dropped() -> None:
    model = OfParts(torch.ones(2))
    forward = Forward(SimpleNamespace(loss=lambda output, batch: (output * batch["z"]).sum()), model)  # type: ignore
    assert forward(model, {"x": X, "z": Y})["loss"] == 1
    assert forward.dropped == {}


def test_a_whole_dict_goes_to_a_forward_that_names_none_of_its_keys_and_needs_one() -> None:
    model = OfBatchAndMore()
    run(model, DICTS)
    assert torch.equal(model.given[0]["x"], X)
    optional = OfOptional()
    run(optional, [{"y": y} for y in Y])
    assert torch.equal(optional.given[1]["y"], Y)


@pytest.mark.parametrize("mapping", [BatchEncoding, BatchFeature, UserDict, lambda given: Found(**given)])
def test_any_mapping_is_a_batch(mapping: Any) -> None:
    model = OfOptional()
    Forward(SimpleNamespace(), model)(model, mapping({"loss": X}))  # type: ignore[arg-type]
    assert torch.equal(model.given[1]["loss"], X)


def test_a_pair_of_a_dict_and_a_target_gives_forward_the_dict() -> None:
    model, seen = OfParts(torch.ones(2)), []

    def loss(output: Tensor, target: Tensor) -> Tensor:
        seen.append(target)
        return output.mean()

    forward = Forward(SimpleNamespace(loss=loss), model)  # type: ignore[arg-type]
    forward(model, default_collate([({"x": x, "y": y, "z": y}, y) for x, y in PAIRS]))
    assert torch.equal(model.given[1], Y)
    assert forward.dropped == {"z": "int64"}
    assert torch.equal(seen[0], Y)


def test_nested_values_are_handed_over_and_only_real_floats_are_cast() -> None:
    model = OfParts().bfloat16()
    boxes, turns = torch.ones(2, 4), torch.ones(2, dtype=torch.complex64)
    labels = [{"boxes": boxes, "class_labels": Y}, {"boxes": boxes[:1], "class_labels": Y[:1]}]
    batch = {"x": [X, None, turns, X > 1], "y": labels}
    Forward(SimpleNamespace(), model)(model, batch)  # type: ignore[arg-type]
    (floats, nothing, complex_, bools), given = model.given
    assert nothing is None
    assert [one.dtype for one in (floats, complex_, bools)] == [torch.bfloat16, torch.complex64, torch.bool]
    assert [one["boxes"].shape for one in given] == [(2, 4), (1, 4)]
    assert given[1]["class_labels"].dtype == torch.int64


@pytest.mark.parametrize("kind", [OfBatch, OfKeywords])
def test_forward_gets_a_whole_dict(kind: type[Model]) -> None:
    model = kind()
    run(model, DICTS)
    [batch] = model.given
    assert torch.equal(batch["x"], X)
    assert torch.equal(batch["y"], Y)


@pytest.mark.parametrize(
    ("samples", "given", "target"),
    [(PAIRS, (X, None), Y), (list(X), (X, None), X), ([(x, x, y) for x, y in PAIRS], (X, X), Y)],
)
def test_a_loss_gets_the_target_that_forward_does_not_get(
    samples: list[Any], given: tuple[Any, ...], target: Tensor
) -> None:
    model, seen = OfParts(torch.ones(2, 3)), []

    def loss(output: Tensor, target: Tensor) -> Tensor:
        seen.append(target)
        return output.mean()

    assert run(model, samples, loss=loss)["loss"] == 1
    assert all(equal(one, other) for one, other in zip(model.given, given, strict=True))
    assert torch.equal(seen[0], target)


def test_the_loss_of_a_dict_gets_the_whole_batch() -> None:
    found = run(OfBatch(torch.ones(2)), DICTS, loss=lambda output, batch: (output * batch["y"]).sum())
    assert found["loss"] == 1


def test_floating_inputs_take_the_dtype_of_the_weights_and_the_target_does_not() -> None:
    model, seen = OfParts(torch.ones(2, dtype=torch.bfloat16)).bfloat16(), []

    def loss(output: Tensor, target: Tensor) -> Tensor:
        seen.append((output.dtype, target.dtype))
        return output.mean()

    run(model, [(x, index, x) for index, x in enumerate(X)], loss=loss)
    assert [given.dtype for given in model.given] == [torch.bfloat16, torch.int64]
    assert seen == [(torch.float32, torch.float32)]
    run(model, PAIRS, loss=loss, cast_inputs=False)
    assert model.given[0].dtype == torch.float32


def test_an_input_without_floats_stays() -> None:
    model = OfParts().bfloat16()
    run(model, [(1, 2)])
    assert [given.dtype for given in model.given] == [torch.int64, torch.int64]


@dataclass
class Found(ModelOutput):
    loss: Tensor | None = None


ONE = torch.ones(())


@pytest.mark.parametrize(
    "output", [ONE, ONE.reshape(1), {"loss": ONE, "logits": X}, SimpleNamespace(loss=ONE), Found(loss=ONE)]
)
def test_a_loss_is_found(output: Any) -> None:
    found = run(OfBatch(output), DICTS)
    assert set(found) == {"loss"}
    assert found["loss"].shape == ()


def test_metrics_are_kept() -> None:
    assert set(run(OfBatch({"loss": ONE, "mse": ONE, "other": ONE}), DICTS)) == {"loss", "mse"}


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (X, r"returned a tensor of shape \(2, 3\), which holds no loss"),
        ({"mse": ONE}, "returned a dict with mse, which"),
        ({"loss": X}, "returned a dict with loss, which"),
        ((ONE, X), "returned a tuple, which"),
        (SimpleNamespace(logits=X), "returned a SimpleNamespace, which"),
    ],
)
def test_a_forward_without_a_loss_is_said(output: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        run(OfBatch(output), DICTS)


@pytest.mark.parametrize("samples", [["text"], [("text", "more")]])
def test_samples_of_another_kind_are_said(samples: list[Any]) -> None:
    with pytest.raises(InputError, match="a batch of the workload's dataset is a list"):
        run(OfBatch(), samples)


def test_samples_that_forward_does_not_take_are_said() -> None:
    with pytest.raises(
        InputError, match=r"forward\(batch: Any\) -> Any does not take its samples: too many positional"
    ):
        run(OfBatch(), PAIRS)


def test_a_metric_may_be_a_number_but_not_several() -> None:
    assert run(OfBatch({"loss": ONE, "accuracy": 0.5, "mse": None}), DICTS) == {"loss": 1, "accuracy": 0.5}
    with pytest.raises(InputError, match=r"returned a tensor of shape \(2, 3\) as l1, not a scalar"):
        run(OfBatch({"loss": ONE, "l1": X}), DICTS)


def test_the_tensors_of_a_loss_are_moved() -> None:
    loss = nn.CrossEntropyLoss(weight=torch.ones(2))
    Forward(SimpleNamespace(loss=loss), OfBatch(), torch.device("meta"))  # type: ignore[arg-type]
    assert loss.weight.is_meta


REFUSED, RAW, FULL = InputError("in words"), IndexError("raw"), MemoryError("full")


@pytest.mark.parametrize(
    ("raised", "refusal", "expected"),
    [(RAW, REFUSED, REFUSED), (RAW, None, RAW), (FULL, REFUSED, FULL), (REFUSED, RAW, REFUSED)],
)
def test_a_workload_says_what_to_raise_for_an_exception_of_the_first_forward(
    raised: Exception, refusal: Exception | None, expected: Exception
) -> None:
    """Out of memory stays what it is, and so does a later exception."""
    model, task = Raises(raised), SimpleNamespace(refusal=lambda _: refusal)
    forward = Forward(task, model)  # type: ignore[arg-type]
    for known in (expected, raised):
        with pytest.raises(type(known)) as error:
            forward(model, {"x": X})
        assert error.value is known
    with pytest.raises(type(raised)) as error:
        Forward(SimpleNamespace(), model)(model, {"x": X})  # type: ignore[arg-type]
    assert error.value is raised
