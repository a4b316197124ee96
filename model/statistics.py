"""The synthetic datasets of the mixture, and the statistics to normalize their values. Imports no torch."""

from math import sqrt
from typing import NamedTuple

from bench.model.config import Pi07Config

STATE_STD = 0.5
"""Standard deviation of a robot's state before its source scales and shifts it."""
ACTION_STD = sqrt(0.5)
"""Standard deviation of an action, a sine, before its source scales and shifts it."""


class Source(NamedTuple):
    """A dataset of the mixture: one kind of robot, in its own units."""

    weight: float
    """Share of the samples."""
    scale: float
    shift: float
    missing_cams: int
    """Number of the policy's cameras that it lacks. It has at least one."""

    def cams(self, config: Pi07Config) -> int:
        """Number of cameras that it has."""
        return max(1, (config.dataset_num_cams or config.num_cams) - self.missing_cams)


SOURCES = (
    Source(weight=0.75, scale=1.0, shift=0.0, missing_cams=0),
    Source(weight=0.25, scale=2.0, shift=0.25, missing_cams=1),
)


def mean_and_std(std: float) -> tuple[float, float]:
    """Over the whole mixture, of a feature with this standard deviation before its source scales and shifts it."""
    mean = sum(source.weight * source.shift for source in SOURCES)
    square = sum(source.weight * ((source.scale * std) ** 2 + source.shift**2) for source in SOURCES)
    return mean, sqrt(square - mean**2)
