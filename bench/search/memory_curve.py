"""Peak memory as a curve over the batch: static part + slope * batch + bend * batch², in shares of capacity."""

import math
from collections.abc import Sequence
from statistics import linear_regression
from typing import NamedTuple

NEAR = 0.98
"""If a batch fails although the curve predicts less than this share of capacity, the curve is not trusted. Above it,
the difference is noise."""
NOISE = 0.002
"""Assumed relative scatter of a peak while there are too few points to estimate it."""
BEND = 0.1
"""Expected share of capacity due to the bend at the largest observed batch, if the points do not show it."""


class Point(NamedTuple):
    """A batch and the share of capacity that it used."""

    batch: int
    share: float


class Curve(NamedTuple):
    """Share of capacity over the batch; convex."""

    static: float
    slope: float
    bend: float

    def at(self, batch: float) -> float:
        return self.static + (self.slope + self.bend * batch) * batch

    def reaches(self, share: float) -> float:
        """The batch at which the curve reaches ``share``; negative if its static part exceeds ``share``."""
        room = share - self.static
        if self.slope <= 0 and self.bend <= 0:
            return math.inf if room >= 0 else -1.0
        root = math.sqrt(max(0.0, self.slope**2 + 4 * self.bend * room))
        return 2 * room / (self.slope + root) if self.slope + root > 0 else math.inf


def fit(points: Sequence[Point]) -> Curve | None:
    """The convex curve that fits ``points`` best; None without points.

    The bend is fitted to the residuals of a straight line (Frisch-Waugh) and shrunk according to the scatter of the
    points: exact points give the exact parabola, noisy ones nearly a line.
    """
    if not points:
        return None
    unit = max(batch for batch, _ in points)
    x, y = [batch / unit for batch, _ in points], [share for _, share in points]
    if len(set(x)) == 1:
        mean = sum(y) / len(y)
        return Curve(0.0, mean / unit, 0.0)
    x2 = [value * value for value in x]
    rest_x2, rest_y = _off_line(x, x2), _off_line(x, y)
    square, cross = _dot(rest_x2, rest_x2), _dot(rest_x2, rest_y)
    bend = 0.0
    if square > 1e-12:
        free = cross / square
        residual = sum((b - free * a) ** 2 for a, b in zip(rest_x2, rest_y, strict=True))
        spare = len(points) - 3
        variance = (residual + NOISE**2 * (spare <= 0)) / max(spare, 1)
        bend = max(0.0, cross / (square + variance / BEND**2))
    slope, static = linear_regression(x, [b - bend * a for a, b in zip(x2, y, strict=True)])
    return Curve(static, slope / unit, bend / unit**2)


def _off_line(x: Sequence[float], y: Sequence[float]) -> list[float]:
    """The residuals of ``y`` after fitting a straight line."""
    slope, intercept = linear_regression(x, y)
    return [b - intercept - slope * a for a, b in zip(x, y, strict=True)]


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(p * q for p, q in zip(a, b, strict=True))
