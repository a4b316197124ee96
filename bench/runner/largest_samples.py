"""The largest samples of a data set: where samples differ in size, a batch of them decides whether a batch fits."""

import dataclasses
import heapq
import math
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from torch import Tensor
from torch.utils.data import Dataset

ALIKE_S, VARIED_S = 0.2, 5.0
"""Seconds for looking at samples: as long as all have one size, and once they differ."""
KEPT = 4096
"""Largest samples that are kept; a larger batch repeats them."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes of samples, in values of all their tensors together."""

    samples: int
    """In the data set."""
    scanned: int
    """Of these, looked at."""
    smallest: int
    largest: int
    indices: tuple[int, ...] = ()
    """Of the largest samples, those first with which a padded batch becomes as large as it can; empty if all samples
    have one shape."""


def sizes_of(samples: Dataset[Any], accelerator: Accelerator) -> Sizes:
    """The sizes of ``samples``, the same on every rank: the first one looks at the samples."""
    found = [scan(samples) if accelerator.is_main_process else None]
    broadcast_object_list(found)
    assert found[0] is not None
    return found[0]


def scan(samples: Any, alike_s: float = ALIKE_S, varied_s: float = VARIED_S) -> Sizes:
    """Look at all samples, or at as many as the time allows, spread over the data set."""
    total = len(samples)
    values: dict[int, int] = {}
    longest: dict[tuple[int, int], tuple[int, int]] = {}
    shapes: set[object] = set()
    start = time.monotonic()
    with _random_state_kept():
        for index in _spread(total):
            shape = _shapes(samples[index])
            values[index] = sum(map(math.prod, shape))
            shapes.add(tuple(shape))
            for leaf, lengths in enumerate(shape):
                for dim, length in enumerate(lengths):
                    longest[leaf, dim] = max(longest.get((leaf, dim), (0, 0)), (length, index))
            if time.monotonic() - start > (alike_s if len(shapes) == 1 else varied_s):
                break
    largest = heapq.nlargest(KEPT, values, key=values.__getitem__)
    in_order = dict.fromkeys([*largest[:1], *(index for _, index in longest.values()), *largest])
    return Sizes(
        samples=total,
        scanned=len(values),
        smallest=min(values.values()),
        largest=values[largest[0]],
        indices=tuple(in_order)[:KEPT] if len(shapes) > 1 else (),
    )


def values_in(batch: Any) -> int:
    """The values of all tensors of a batch."""
    return sum(math.prod(_shape(leaf)) for leaf in _leaves(batch))


def _shapes(sample: Any) -> list[tuple[int, ...]]:
    """Of all parts of a sample. Beside tensors, text is a name; alone, it is what a ``collate`` makes tokens of."""
    leaves = [*_leaves(sample)]
    if all(isinstance(leaf, str | bytes) for leaf in leaves):
        return [(len(leaf),) for leaf in leaves]
    return [_shape(leaf) for leaf in leaves]


def _leaves(value: Any) -> Iterator[Any]:
    """What containers hold, also mappings that torch does not know, such as a tokenizer's, and dataclasses."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _leaves(part)
    else:
        yield value


def _shape(leaf: Any) -> tuple[int, ...]:
    """Of a tensor, an array, or a picture, which calls it its size; one value is (1,), and text has none."""
    if isinstance(leaf, Tensor) and leaf.is_nested:
        return (sum(part.numel() for part in leaf.unbind()),)
    shape = leaf.shape if isinstance(leaf, Tensor) else getattr(leaf, "shape", None) or getattr(leaf, "size", None)
    if isinstance(shape, tuple | torch.Size):
        return tuple(shape)
    return (1,) if isinstance(leaf, int | float) else (0,)


def _spread(total: int) -> Iterator[int]:
    """Every index once, neighbours far apart: by the golden ratio, which meets any period of the data set."""
    stride = max(1, round(total * 0.618))
    while math.gcd(stride, total) > 1:
        stride += 1
    return (number * stride % total for number in range(total))


@contextmanager
def _random_state_kept() -> Iterator[None]:
    """Samples that draw random numbers are later the same as without a scan."""
    python, numpys = random.getstate(), numpy.random.get_state()
    with torch.random.fork_rng(devices=[]):
        yield
    random.setstate(python)
    numpy.random.set_state(numpys)
