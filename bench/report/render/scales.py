"""Positions of values in a drawing, and the values at the ticks of its axes."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from bench.report.tables.figure import LineChart

LEFT, RIGHT = 11.0, 97.0
"""Beginning and end of the horizontal axis, in percent."""


@dataclass(frozen=True, kw_only=True)
class Across:
    """From values to percent across."""

    low: float
    high: float
    doubling: bool

    def __call__(self, value: float) -> float:
        low, high, at = map(math.log2, (self.low, self.high, value)) if self.doubling else (self.low, self.high, value)
        return LEFT + (RIGHT - LEFT) * (at - low) / (high - low)

    def ticks(self) -> Iterator[float]:
        """Values at the ticks of the axis."""
        if self.doubling:
            first, last = math.ceil(math.log2(self.low)), math.floor(math.log2(self.high))
            every = math.ceil((last - first + 1) / 8)
            yield from (2**exponent for exponent in range(first, last + 1, every))
        else:
            step = max(1, step_of(self.high - self.low, 7))
            yield from (step * number for number in range(math.ceil(self.low / step), math.floor(self.high / step) + 1))


def across(chart: LineChart) -> Across:
    """A scale with a place for every batch. It is logarithmic where batches span a factor of 8 or more."""
    values = [mark.x for panel in chart.panels for line in panel.lines for mark in line.points]
    values += [miss.x for panel in chart.panels for miss in panel.misses]
    low, high = min(values), max(values)
    if high >= 8 * low:
        return Across(low=low / 1.25, high=high * 1.25, doubling=True)
    around = max((high - low) * 0.08, 0.5)
    return Across(low=low - around, high=high + around, doubling=False)


def step_of(reach: float, at_most: int) -> float:
    """The smallest of 1, 2, 5, 10, ... that divides ``reach`` into ``at_most`` parts or fewer."""
    size = 10.0 ** math.floor(math.log10(reach / at_most))
    return next(size * factor for factor in (1, 2, 5, 10, 20) if reach / (size * factor) <= at_most)


def heights(chart: LineChart) -> tuple[float, float]:
    """The step between lines of the grid, and the uppermost."""
    values = [limit.y for panel in chart.panels for limit in panel.limits]
    points = [point for panel in chart.panels for line in panel.lines for point in line.points]
    values += [max(point.y, point.interval[1] if point.interval else 0) for point in points]
    reach = max(values, default=0) / chart.y_unit or 1
    step = step_of(reach, 5)
    return step, step * math.ceil(reach / step)
