"""Charts as data: `charts` fills them in and `plots` draws them. Values are in base units."""

from dataclasses import dataclass

WIDEST = 2.0
"""Times the largest value: a wider interval would leave no room to tell values apart, and is cut."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One measured batch."""

    x: float
    y: float
    interval: tuple[float, float] | None = None
    words: str
    """Shown when a reader points at it."""
    hollow: bool = False
    """Not to be recommended: the batch thrashes, or the row is invalid."""
    label: str = ""
    """Beside the mark, if it has room there."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One cell's points, smallest batch first."""

    series: int
    points: tuple[Point, ...]
    dashed: bool = False


@dataclass(frozen=True, kw_only=True)
class Miss:
    """A batch that ran out of memory."""

    x: float
    series: int
    words: str


@dataclass(frozen=True, kw_only=True)
class Limit:
    """A value that must not be reached."""

    y: float
    words: str


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of axes; all panels of a chart share their scales."""

    title: str
    lines: tuple[Line, ...]
    misses: tuple[Miss, ...] = ()
    limits: tuple[Limit, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Chart:
    name: str
    """For files and links."""
    title: str
    x_label: str
    series: tuple[str, ...] = ()
    """Their names, for the legend."""
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class LineChart(_Chart):
    """A value by batch."""

    y_label: str
    y_unit: float
    """What ``y_label`` counts, in base units."""
    panels: tuple[Panel, ...]
    x_label: str = "batch per rank"
    may_double: bool = True
    """Whether the horizontal scale is logarithmic where values span a factor of 8."""
    at_values: bool = True
    """Whether ticks stand at the measured values; else at round ones."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A piece of a bar."""

    series: int | None
    """None: a gap of this length."""
    value: float
    words: str


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One measured batch, in parts."""

    label: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, kw_only=True)
class BarChart(_Chart):
    """Stacked bars."""

    x_unit: float
    """What ``x_label`` counts, in base units."""
    bars: tuple[Bar, ...]


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """A setting against the reference."""

    label: str
    series: int
    """For the color alone."""
    value: float
    interval: tuple[float, float] | None
    """None for the reference itself."""
    words: str
    hollow: bool
    """Not decided."""


@dataclass(frozen=True, kw_only=True)
class RatioChart(_Chart):
    """Ratios with their intervals, below each other. It has no series: each ratio has its label."""

    ratios: tuple[Ratio, ...]
    even: tuple[float, float]
    """Ratios within these ends count as the same."""
    most: float
    """The largest ratio that the axis shows. Intervals are cut there."""


Chart = LineChart | BarChart | RatioChart
