"""What the batches of measured steps held: tokens, and the most values. Nothing waits for the device."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from bench.records.rank_outcome import Tokens
from bench.runner.forward import TOKENS, Batch
from bench.runner.largest_samples import values_in

MASK = "attention_mask"


class Seen:
    """Batches, and what each held.

    Args:
        expected: how many samples there will be.
        samples: of each batch.
        values: whether to count the values of a batch.
    """

    def __init__(self, batches: Iterator[Batch], expected: int, samples: int, *, values: bool) -> None:
        self._batches, self._expected, self._samples, self._values = batches, expected, samples, values
        self._places: list[int] = []
        self._tokens_N: Tensor | None = None
        self._begun = self.most_values = 0
        self._by_sample = self._known = True

    def __iter__(self) -> "Seen":
        return self

    def __next__(self) -> Batch:
        batch = next(self._batches)
        if self._values:
            self.most_values = max(self.most_values, values_in(batch))
        if self._known:
            self._count(batch)
        self._begun += self._samples
        return batch

    def _count(self, batch: Batch) -> None:
        tokens = tokens_in(batch)
        if tokens is None or self._begun >= self._expected:
            self._known = False
            return
        if tokens.numel() != self._samples:
            tokens, self._by_sample = tokens.sum()[None], False
        if self._tokens_N is None:  # one tensor for all steps: more of them would keep the heap from shrinking
            self._tokens_N = torch.zeros(self._expected, dtype=torch.long, device=tokens.device)
        self._tokens_N[self._begun : self._begun + len(tokens)] = tokens
        if (places := places_in(batch)) is not None:
            self._places.append(places)

    def tokens(self) -> tuple[Tokens | None, Counter[int]]:
        """What was trained, and how many of the samples had each length; none where that is not known."""
        if not self._known or self._tokens_N is None or self._begun != self._expected:
            return None, Counter()
        lengths = Counter(self._tokens_N.tolist()) if self._by_sample else Counter()
        trained = self._tokens_N.reshape(-1, self._samples).sum(1).tolist()
        return Tokens(
            samples=self._expected,
            trained=tuple(trained),
            places=tuple(self._places) if len(self._places) == len(trained) else None,
            longest=max(lengths, default=None),
        ), lengths


def tokens_in(batch: Batch) -> Tensor | None:
    """The tokens of each sample without padding, or in any other parts; None if the batch does not say it.

    By its ``num_tokens``, else by a mask of samples and places. A mask of attention has more dimensions.
    """
    inputs = _inputs(batch)
    if TOKENS in inputs:
        return torch.as_tensor(inputs[TOKENS]).flatten().long()
    mask = inputs.get(MASK)
    return mask.long().sum(1) if isinstance(mask, Tensor) and _is_mask(mask) else None


def places_in(batch: Batch) -> int | None:
    """The tokens of a batch with padding; None where no input shows it."""
    inputs = _inputs(batch)
    shown = (value for value in (inputs.get(MASK), inputs.get("input_ids")) if isinstance(value, Tensor))
    return next((value.numel() for value in shown if value.ndim == 2), None)


def _is_mask(mask: Tensor) -> bool:
    return mask.ndim == 2 and not mask.is_floating_point()


def _inputs(batch: Batch) -> Mapping[Any, Any]:
    if isinstance(batch, list | tuple):  # of inputs and targets, or of samples
        found = [part for part in batch if isinstance(part, Mapping)]
        return found[0] if len(found) == 1 else {}
    return batch if isinstance(batch, Mapping) else {}
