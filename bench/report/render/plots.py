"""Charts as SVG text: the same drawing for the HTML page and, with its own legend and style, for a file.

Horizontal positions are in percent, so that a drawing fills the width of its place and its text keeps its size.
"""

import html
import math
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import pairwise

from bench.errors import one_line
from bench.report.tables.figure import WIDEST, Bar, BarChart, Chart, Line, LineChart, Panel, Ratio, RatioChart

COLORS = 10
"""Classes c0 to c9 of chart.css."""
SHAPES = (
    "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0z",
    "M-3.6,-3.6h7.2v7.2h-7.2z",
    "M0,-5l4.6,8h-9.2z",
    "M0,-5l5,5l-5,5l-5,-5z",
)
"""Circle, square, triangle, diamond: lines differ not only by color."""
CROSS = "M-4,-4l8,8M4,-4l-8,8"

TOP, PLOT, STRIP, ROW, AXIS = 34, 200, 8, 14, 40
"""Heights: above the plot, of the plot, above the crosses, of a line of crosses, of the axis below."""
TITLE_LINE, TITLE_LETTERS = 16, 50
"""Of a panel's title: the height of a line, and the letters that fit into a line on a narrow page."""
BAR, GAP = 14, 28
"""Heights of a bar, and of its label."""

LEFT, RIGHT = 11.0, 97.0
"""Beginning and end of the horizontal axis, in percent."""
APART = 7.0
"""Least distance of two ticks, in percent."""
WIDTH = 840
COLUMNS = 2
"""Width of a file in pixels, and its panels side by side."""
NARROW = 400
"""Width of a drawing in pixels, at least, where names beside marks do not touch."""
LETTER = 6.7
"""Mean width of a letter in pixels: a file cannot measure its own text."""


@dataclass(frozen=True, kw_only=True)
class Across:
    """From values to percent across."""

    low: float
    high: float
    doubling: bool
    values: tuple[float, ...]
    """That were measured, in rising order."""

    def __call__(self, value: float) -> float:
        low, high, at = map(math.log2, (self.low, self.high, value)) if self.doubling else (self.low, self.high, value)
        return LEFT + (RIGHT - LEFT) * (at - low) / (high - low)

    def ticks(self) -> Iterator[float]:
        """The measured values that have room for a label, from both ends."""
        last = self.values[-1]
        at = -math.inf
        for value in self.values[:-1]:
            if self(value) - at >= APART and self(last) - self(value) >= APART:
                at = self(value)
                yield value
        yield last


def across(chart: LineChart) -> Across:
    """A scale with a place for every value. It is logarithmic where batches span a factor of 8 or more."""
    values = [mark.x for panel in chart.panels for line in panel.lines for mark in line.points]
    values += [miss.x for panel in chart.panels for miss in panel.misses]
    low, high, distinct = min(values), max(values), tuple(sorted(set(values)))
    if high >= 8 * low and chart.may_double:
        return Across(low=low / 1.25, high=high * 1.25, doubling=True, values=distinct)
    around = max((high - low) * 0.08, 0.5 if chart.at_values else 0.05 * high)
    if not chart.at_values:
        step = step_of(high - low + 2 * around, 6)
        first, last = math.ceil((low - around) / step), math.floor((high + around) / step)
        distinct = tuple(number * step for number in range(first, last + 1))
    return Across(low=low - around, high=high + around, doubling=False, values=distinct)


def step_of(reach: float, at_most: int) -> float:
    """The smallest of 1, 2, 5, 10, ... that divides ``reach`` into ``at_most`` parts or fewer."""
    size = 10.0 ** math.floor(math.log10(reach / at_most))
    return next(size * factor for factor in (1, 2, 5, 10, 20) if reach / (size * factor) <= at_most)


def heights(chart: LineChart) -> tuple[float, float]:
    """The step between lines of the grid, and the uppermost."""
    values = [limit.y for panel in chart.panels for limit in panel.limits]
    points = [point for panel in chart.panels for line in panel.lines for point in line.points]
    most = WIDEST * max((point.y for point in points), default=0)
    values += [max(point.y, min(point.interval[1], most) if point.interval else 0) for point in points]
    reach = max(values, default=0) / chart.y_unit or 1
    step = step_of(reach, 5)
    return step, step * math.ceil(reach / step)


def plain(number: float) -> str:
    """A number on an axis, without trailing zeros."""
    return f"{number:.10g}"


def svg(*charts: Chart) -> str:
    """A complete SVG file with the charts below each other. The same charts give the same bytes."""
    body, total = _titled(charts[0])
    for chart in charts[1:]:
        lines, height = _titled(chart)
        body += [f'<g transform="translate(0 {total})">', *lines, "</g>"]
        total += height
    style = files("bench.report.render").joinpath("page", "chart.css").read_text(encoding="utf-8")
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" width="{WIDTH}" height="{total}"'
            f' viewBox="0 0 {WIDTH} {total}" role="img">',
            f"<title>{escape(', '.join(chart.title for chart in charts))}</title>",
            f"<style>{style}</style>",
            '<rect class="paper" width="100%" height="100%"/>',
            *body,
            "</svg>",
            "",
        ]
    )


def _titled(chart: Chart) -> tuple[list[str], int]:
    """A chart with its title, legend and notes, and the height of all that."""
    body, height = _panels(chart) if isinstance(chart, LineChart) else ([drawing(chart)], _height(chart))
    legend, top = _legend(chart.series)
    notes = [
        _text("note", "16", top + height + 14 + 17 * number, line)
        for number, line in enumerate(textwrap.wrap(" ".join(chart.notes), int((WIDTH - 32) / LETTER * 1.1)))
    ]
    lines = [
        _text("title", "16", 28, chart.title),
        *legend,
        f'<svg x="16" y="{top}" width="{WIDTH - 32}" height="{height}">',
        *body,
        "</svg>",
        *notes,
    ]
    return lines, top + height + 17 * len(notes) + 16


def swatch(series: int) -> str:
    """The mark of a series, for a legend."""
    return f'<path class="{_color(series)} mark" d="{SHAPES[series % len(SHAPES)]}"/>'


def escape(text: str) -> str:
    """``text`` for HTML and XML, inside and outside of attributes; without characters that XML does not allow."""
    return html.escape(one_line(text))


def drawing(chart: Chart, panel: Panel | None = None) -> str:
    """One panel, or all bars, as an <svg> that fills the width of its place."""
    label = ", ".join(filter(None, (chart.title, panel.title if panel else "")))
    match chart:
        case LineChart():
            assert panel is not None
            lines = _axes(chart, panel)
        case BarChart():
            lines = _bars(chart)
        case RatioChart():
            lines = _ratios(chart)
    begin = f'<svg width="100%" height="{_height(chart)}" role="img" aria-label="{escape(label)}">'
    return "\n".join([begin, *lines, "</svg>"])


def _height(chart: Chart) -> int:
    if not isinstance(chart, LineChart):
        names, gap = _names(chart)
        return len(names) * (BAR + gap) + AXIS
    return _titles(chart) + TOP + PLOT + _strip(chart) + AXIS


def _titles(chart: LineChart) -> int:
    """Height of the panels' titles, the same in all panels so that their axes line up."""
    return TITLE_LINE * max((len(_title(panel)) for panel in chart.panels), default=0)


def _title(panel: Panel) -> list[str]:
    return textwrap.wrap(one_line(panel.title), TITLE_LETTERS)


def _strip(chart: LineChart) -> int:
    """Height of the crosses; crosses of the same batch stack."""
    at = [Counter(miss.x for miss in panel.misses) for panel in chart.panels]
    rows = max((count for counts in at for count in counts.values()), default=0)
    return STRIP + rows * ROW if rows else 0


def _axes(chart: LineChart, panel: Panel) -> Iterator[str]:
    scale, strip, titles = across(chart), _strip(chart), _titles(chart)
    step, top = heights(chart)
    bottom = titles + TOP + PLOT

    def y(value: float) -> float:
        return bottom - PLOT * min(value / chart.y_unit / top, 1.0)

    for number, words in enumerate(_title(panel)):
        yield _text("panel", "0", 12 + TITLE_LINE * number, words)
    yield _text("label", "0", titles + 12, chart.y_label)
    for number in range(round(top / step) + 1):
        height = bottom - PLOT * number * step / top
        yield _level("grid" if number else "axis", height)
        yield _text("tick", f"{LEFT - 1.5}%", height + 4, plain(number * step), "end")
    below = bottom + strip
    for tick in scale.ticks():
        yield _text("tick", f"{scale(tick):.2f}%", below + 18, plain(tick), "middle")
    yield _text("label", f"{(LEFT + RIGHT) / 2}%", below + 34, chart.x_label, "middle")
    for limit in panel.limits:
        yield _level("limit", y(limit.y))
        yield _text("limit", f"{LEFT + 1}%", y(limit.y) - 5, limit.words)
    for line in panel.lines:
        yield from _line(line, scale, y)
    points = [point for line in panel.lines for point in line.points]
    yield from _labels(
        [(scale(point.x), y(point.y), point.label) for point in points], [y(limit.y) for limit in panel.limits]
    )
    if strip:
        yield _text("tick", f"{LEFT - 1.5}%", bottom + (STRIP + strip) / 2 + 4, "oom", "end")
    stacked: Counter[float] = Counter()
    for miss in panel.misses:
        stacked[miss.x] += 1
        at = bottom + STRIP + ROW * (stacked[miss.x] - 0.5)
        yield _mark("miss", miss.series, scale(miss.x), at, CROSS, miss.words, f'data-x="{miss.x}"')


def _line(line: Line, scale: Across, y: Callable[[float], float]) -> Iterator[str]:
    kind = " dashed" if line.dashed else ""
    data = f'data-series="{line.series}"'
    for point, following in pairwise(line.points):
        yield (
            f'<line class="{_color(line.series)} line{kind}" {data} x1="{scale(point.x):.2f}%" y1="{y(point.y):.1f}"'
            f' x2="{scale(following.x):.2f}%" y2="{y(following.y):.1f}"/>'
        )
    for point in line.points:
        values, x = f'data-x="{point.x}" data-y="{point.y!r}"', scale(point.x)
        if point.interval:
            low, high = point.interval
            values += f' data-low="{low!r}" data-high="{high!r}"'
            yield (
                f'<line class="{_color(line.series)} interval" {data} x1="{x:.2f}%" x2="{x:.2f}%"'
                f' y1="{y(low):.1f}" y2="{y(high):.1f}"/>'
            )
        hollow = " hollow" if point.hollow else ""
        shape = SHAPES[line.series % len(SHAPES)]
        yield _mark(f"mark point{hollow}{kind}", line.series, x, y(point.y), shape, point.words, values)


def _labels(marks: Sequence[tuple[float, float, str]], levels: Sequence[float] = ()) -> Iterator[str]:
    """Names beside their marks: above or below, where they cover no mark, no line at these levels and no other name."""
    taken = [(x, x, y) for x, y, _ in marks] + [(LEFT, 100.0, level) for level in levels]
    for x, y, label in marks:
        width = len(label) * LETTER / NARROW * 100
        left = min(max(x - width / 2, LEFT), 100 - width)
        for away in (-10, 20, -26, 36):
            free = all(
                right < left or begin > left + width or abs(y + away - 4 - at) > 11 for begin, right, at in taken
            )
            if label and free:
                taken.append((left, left + width, y + away - 4))
                yield _text("label", f"{left:.2f}%", y + away, label)
                break


def _text(kind: str, x: str, y: float, words: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>'


def _level(kind: str, y: float) -> str:
    return f'<line class="{kind}" x1="{LEFT}%" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>'


def _mark(kind: str, series: int, x: float, y: float, shape: str, words: str, values: str) -> str:
    return (
        f'<svg class="at" x="{x:.2f}%" y="{y:.1f}" overflow="visible"><path class="{_color(series)} {kind}"'
        f' data-series="{series}" {values} d="{shape}"><title>{escape(words)}</title></path></svg>'
    )


def _names(chart: BarChart | RatioChart) -> tuple[list[list[str]], int]:
    """The lines of the label above each bar, and the height of the tallest."""
    bars: Sequence[Bar | Ratio] = chart.bars if isinstance(chart, BarChart) else chart.ratios
    names = [textwrap.wrap(one_line(bar.label), TITLE_LETTERS) for bar in bars]
    return names, GAP + TITLE_LINE * (max(map(len, names), default=1) - 1)


def _name(lines: Sequence[str], top: int) -> Iterator[str]:
    """A label whose last line stands above the bar at ``top``."""
    for left, line in zip(reversed(range(len(lines))), lines, strict=True):
        yield _text("name", "0", top - 6 - TITLE_LINE * left, line)


def _bars(chart: BarChart) -> Iterator[str]:
    longest = max(sum(part.value for part in bar.parts) for bar in chart.bars) / chart.x_unit
    step = step_of(longest, 6)
    names, gap = _names(chart)
    bottom = len(chart.bars) * (BAR + gap)
    for number in range(math.floor(longest / step) + 1):
        at = RIGHT * number * step / longest
        yield f'<line class="grid" x1="{at:.2f}%" x2="{at:.2f}%" y1="0" y2="{bottom + 4}"/>'
        yield _text("tick", f"{at:.2f}%", bottom + 18, plain(number * step), "middle" if number else "start")
    yield _text("label", f"{RIGHT / 2}%", bottom + 34, chart.x_label, "middle")
    for number, (bar, name) in enumerate(zip(chart.bars, names, strict=True)):
        top = number * (BAR + gap) + gap
        yield from _name(name, top)
        yield from _bar(bar, top, RIGHT / longest / chart.x_unit)


def _bar(bar: Bar, top: int, percent_per_unit: float) -> Iterator[str]:
    at = 0.0
    for part in bar.parts:
        width = part.value * percent_per_unit
        if part.series is not None:
            yield (
                f'<rect class="{_color(part.series)} part" data-series="{part.series}" data-value="{part.value!r}"'
                f' x="{at:.3f}%" y="{top}" width="{width:.3f}%" height="{BAR}">'
                f"<title>{escape(part.words)}</title></rect>"
            )
        at += width


def _ratios(chart: RatioChart) -> Iterator[str]:
    ends: list[float] = [
        *chart.even,
        *(min(end, chart.most) for ratio in chart.ratios for end in (ratio.value, *(ratio.interval or ()))),
    ]
    step = step_of(max(ends) - min(ends), 6)
    first, last = math.floor(min(ends) / step), math.ceil(max(ends) / step)
    names, gap = _names(chart)
    bottom = len(chart.ratios) * (BAR + gap)

    def x(value: float) -> float:
        return 1.0 + (RIGHT - 1.0) * (value / step - first) / (last - first)

    begin, end = map(x, chart.even)
    yield f'<rect class="band" x="{begin:.2f}%" width="{end - begin:.2f}%" y="0" height="{bottom}"/>'
    for number in range(first, last + 1):
        at = x(number * step)
        yield f'<line class="grid" x1="{at:.2f}%" x2="{at:.2f}%" y1="0" y2="{bottom + 4}"/>'
        yield _text("tick", f"{at:.2f}%", bottom + 18, plain(number * step), "middle")
    yield f'<line class="axis" x1="{x(1):.2f}%" x2="{x(1):.2f}%" y1="0" y2="{bottom + 4}"/>'
    yield _text("label", f"{RIGHT / 2}%", bottom + 34, chart.x_label, "middle")
    for number, (ratio, name) in enumerate(zip(chart.ratios, names, strict=True)):
        top = number * (BAR + gap) + gap
        at, values = top + BAR / 2, f'data-x="{ratio.value!r}"'
        yield from _name(name, top)
        if ratio.interval:
            low, high = ratio.interval
            values += f' data-low="{low!r}" data-high="{high!r}"'
            yield (
                f'<line class="{_color(ratio.series)} interval" x1="{x(low):.2f}%"'
                f' x2="{x(min(high, chart.most)):.2f}%" y1="{at:g}" y2="{at:g}"/>'
            )
        hollow = " hollow" if ratio.hollow else ""
        shape = SHAPES[ratio.series % len(SHAPES)]
        yield _mark(f"mark point{hollow}", ratio.series, x(ratio.value), at, shape, ratio.words, values)


def _panels(chart: LineChart) -> tuple[list[str], int]:
    columns = min(COLUMNS, len(chart.panels))
    share, height = 100 / columns, _height(chart) + 10
    placed = [
        f'<svg x="{(share + 1) * (number % columns):.2f}%" y="{height * (number // columns)}" width="{share - 1:.2f}%"'
        f' height="{height}">{drawing(chart, panel)}</svg>'
        for number, panel in enumerate(chart.panels)
    ]
    return placed, height * math.ceil(len(chart.panels) / columns)


def _legend(series: Sequence[str]) -> tuple[list[str], int]:
    """The names with their marks, in as many lines as they need, and where the drawing begins."""
    lines, x, y = [], 16.0, 52
    for number, name in enumerate(series):
        width = 36 + LETTER * len(name)
        if x > 16 and x + width > WIDTH - 16:
            x, y = 16.0, y + 20
        lines.append(f'<g transform="translate({x + 5:.1f} {y - 4})">{swatch(number)}</g>')
        lines.append(_text("name", f"{x + 15:.1f}", y, name))
        x += width
    return lines, y + 16


def _color(series: int) -> str:
    return f"c{series % COLORS}"
