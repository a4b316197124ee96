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
"""Number of stretches that a long series is cut into."""


def mean_interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> Interval | None:
    """Where the mean of the process behind ``samples`` lies; None for fewer than three.

    Uses batch means: consecutive steps are correlated, so the variation of single steps would give too narrow an
    interval. The series is cut into `BLOCKS` blocks with nearly independent means, to which Student's t applies (Law,
    Simulation Modeling and Analysis, section 9.5.3). With fewer than two steps a block, single steps are used.
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
    """`BLOCKS` equal stretches; the last one includes the remainder. Single samples if there are too few."""
    size = len(samples) // BLOCKS
    if size < 2:
        return [[sample] for sample in samples]
    cuts = [index * size for index in range(BLOCKS)] + [len(samples)]
    return [samples[start:end] for start, end in itertools.pairwise(cuts)]


def standard_error(values: Sequence[float]) -> float:
    """Standard error of the mean of independent values."""
    mean, n = statistics.fmean(values), len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1) / n)


@cache
def student_t(degrees: float, confidence: float) -> float:
    """Half-width of a two-sided interval in standard errors; infinite ``degrees`` give the normal distribution's."""
    from scipy.special import stdtrit  # importing scipy.stats takes longer than many reports

    return float(stdtrit(degrees, (1 + confidence) / 2))
