"""What batches say of their tokens."""

from typing import Any

import pytest
import torch

from bench.records.rank_outcome import Tokens
from bench.runner.forward import Forward
from bench.runner.seen import Seen

MASKS = [torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0]]), torch.tensor([[1, 1], [1, 1]])]


def seen(batches: list[Any], samples: int = 2) -> Seen:
    found = Seen(iter(batches), len(batches) * samples, samples, values=True)
    assert len(list(found)) == len(batches)
    return found


def test_a_mask_says_tokens_places_and_lengths() -> None:
    found = seen([{"attention_mask": mask} for mask in MASKS])
    assert found.tokens() == (Tokens(samples=4, trained=(4, 4), places=(8, 4), longest=3), {3: 1, 1: 1, 2: 2})
    assert found.most_values == 8


def test_a_number_says_more_than_a_mask() -> None:
    ids = torch.zeros(2, 5)
    told = [
        {"num_tokens": torch.tensor([3, 4]), "input_ids": ids, "attention_mask": torch.ones(2, 5)},
        ({"num_tokens": [1, 1], "input_ids": ids}, torch.zeros(2)),
    ]
    tokens, lengths = seen(told).tokens()
    assert tokens == Tokens(samples=4, trained=(7, 2), places=(10, 10), longest=4)
    assert lengths == {3: 1, 4: 1, 1: 2}


def test_a_number_for_the_whole_batch_names_no_sample() -> None:
    tokens, lengths = seen([{"num_tokens": 7}, {"num_tokens": torch.tensor(9)}]).tokens()
    assert tokens == Tokens(samples=4, trained=(7, 9))
    assert not lengths


@pytest.mark.parametrize(
    "batch",
    [
        {"attention_mask": torch.zeros(2, 1, 4, 4)},
        {"attention_mask": torch.zeros(2, 4)},
        torch.zeros(2, 3),
        [{"num_tokens": 3}, {"num_tokens": 4}],
    ],
)
def test_what_says_nothing_counts_nothing(batch: Any) -> None:
    assert seen([batch, {"num_tokens": 3}]).tokens()[0] is None


def test_only_a_forward_that_names_the_number_gets_it() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, **others: Any) -> torch.Tensor:
            assert not others
            return x.sum()

    class Naming(torch.nn.Module):
        def forward(self, x: torch.Tensor, num_tokens: torch.Tensor) -> torch.Tensor:
            return x.sum() / num_tokens

    batch, loss = {"x": torch.ones(4), "num_tokens": torch.tensor(2)}, []
    for model in (Model(), Naming()):
        forward = Forward(object(), model)  # type: ignore[arg-type]
        loss.append(float(forward(model, batch)["loss"]))
        assert not forward.dropped
    assert loss == [4, 2]
