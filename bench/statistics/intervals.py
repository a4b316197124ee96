"""How sure a mean is. Pure arithmetic on raw samples."""

import itertools
import math
import statistics
from collections.abc import Sequence
from functools import cache

CONFIDENCE = 0.95
Interval = tuple[float, float]
"""The lower and the upper end."""
BLOCKS = 10
"""Into which a long series is cut."""


def mean_interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> Interval | None:
    """Where the mean of the process behind ``samples`` lies; None for fewer than three.

    By batch means: steps that follow each other are alike, so the scatter of single steps would promise too much. The
    series is cut into `BLOCKS` blocks whose means are nearly independent, and Student's t is taken of these (Law,
    Simulation Modeling and Analysis, section 9.5.3). Fewer than two steps a block are taken one by one.
    """
    if len(samples) < 3:
        return None
    means = block_means(samples)
    mean = statistics.fmean(samples)
    half = student_t(len(means) - 1, confidence) * standard_error(means)
    return mean - half, mean + half


def difference_interval(difference: float, one: Interval, other: Interval) -> Interval:
    """Around the ``difference`` of two means with these intervals, taken as independent."""
    half = math.hypot(*((high - low) / 2 for low, high in (one, other)))
    return difference - half, difference + half


def block_means(samples: Sequence[float]) -> list[float]:
    """Means of the stretches that `blocks` cuts."""
    return [statistics.fmean(block) for block in blocks(samples)]


def blocks(samples: Sequence[float]) -> list[Sequence[float]]:
    """`BLOCKS` equal stretches, what is left over at the end joining the last; single samples when there are few."""
    size = len(samples) // BLOCKS
    if size < 2:
        return [[sample] for sample in samples]
    cuts = [index * size for index in range(BLOCKS)] + [len(samples)]
    return [samples[start:end] for start, end in itertools.pairwise(cuts)]


def standard_error(values: Sequence[float]) -> float:
    """Of the mean of independent values."""
    mean, n = statistics.fmean(values), len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1) / n)


@cache
def student_t(degrees: float, confidence: float) -> float:
    """How many standard errors a two-sided interval reaches to each side; infinite ``degrees`` give the normal's."""
    from scipy.special import stdtrit  # scipy.stats would take longer to import than many a report takes to make

    return float(stdtrit(degrees, (1 + confidence) / 2))
