"""The model that is trained, and the samples of its calls."""

from collections import UserDict

import torch
from torch import nn

from bench.observe.model import WatchedModel, samples_in, trained_roots


def test_samples_are_the_first_dimension_of_the_first_tensor() -> None:
    x = torch.zeros(3, 2)
    assert samples_in(((x, 1), {})) == 3
    assert samples_in(({"scale": torch.tensor(1.0), "x": [x]},)) == 3
    assert samples_in(((), {"input_ids": x})) == 3
    assert samples_in(["words"]) is None
    assert samples_in(UserDict(x=x)) == 3


def test_the_calls_of_the_outermost_trained_module_are_counted() -> None:
    inner, teacher = nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False)
    model, head = nn.Sequential(inner, nn.ReLU()), nn.Linear(2, 1)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)
    assert {id(root) for root in trained_roots([optimizer])} == {id(model), id(head)}
    watched = WatchedModel()
    watched.watch([optimizer])

    def step(batches: int) -> None:
        for _ in range(batches):
            x = torch.ones(5, 2)
            with torch.no_grad():
                model(teacher(x))  # an evaluation
            head(torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)).sum().backward()

    step(1)
    watched.choose()
    assert watched.model is model
    step(4)
    assert (watched.forwards, watched.samples) == (4, 20)
    watched.reset()
    step(1)
    assert (watched.forwards, watched.samples) == (1, 5)


def test_a_compiled_models_calls_are_counted() -> None:
    model = torch.compile(nn.Linear(2, 2), backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watched = WatchedModel()
    model(torch.ones(3, 2)).sum().backward()
    watched.watch([optimizer])
    model(torch.ones(3, 2)).sum().backward()
    watched.choose()
    model(torch.ones(3, 2)).sum().backward()
    assert (watched.forwards, watched.samples) == (1, 3)
