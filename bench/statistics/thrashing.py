"""Which batches thrash: they fit only because the allocator frees its blocks and asks for them again. Pure."""

from collections.abc import Iterable
from typing import NamedTuple

CLEARLY = 0.03
"""Share by which a throughput must be lower for a step or two of noise not to explain it."""
CEILING = 0.97
"""Share of capacity from which on memory counts as full."""


class Fit(NamedTuple):
    """A batch that fits."""

    batch: int
    rate: float
    """Samples per second; 0 where it is unknown."""
    at_ceiling: bool = False
    """Whether an allocator that keeps blocks held at least `CEILING` of the capacity."""
    retried: bool = False
    """Whether the allocator had to free its blocks and ask again."""


def thrashing_batches(fits: Iterable[Fit]) -> frozenset[int]:
    """Batches of one cell whose allocator retried, or that fill the memory and are slower than a smaller batch."""
    batches, fastest = set(), 0.0
    for fit in sorted(fits, key=lambda fit: fit.batch):
        if fit.retried or (fit.at_ceiling and fit.rate < (1 - CLEARLY) * fastest):
            batches.add(fit.batch)
        fastest = max(fastest, fit.rate)
    return frozenset(batches)
