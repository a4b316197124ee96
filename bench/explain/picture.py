"""The page: the waterfall, and one step of each rank over time, as bar charts of the report."""

from collections.abc import Iterator, Sequence

from bench import units
from bench.explain import parts
from bench.explain.divide import Division
from bench.explain.intervals import Interval, intersection
from bench.explain.shown import rows_of
from bench.explain.waterfall import Explained, Waterfall
from bench.report.tables.figure import Bar, BarChart, Part
from bench.report.tables.sections import Section
from bench.report.tables.table import Lines, Table

KINDS = (
    parts.MATRIX,
    parts.EXPOSED,
    parts.OPTIMIZER,
    parts.DATA,
    parts.WAITING,
    parts.ATTENTION,
    parts.COPIES,
    parts.ELEMENTWISE,
    parts.RECOMPUTED,
    parts.GAP,
)
"""The series of a step over time, by the colors of the report."""
DIFFERENCES = ("step", "slower", "faster", "within noise")
FINEST = 1 / 2000
"""Spans that are shorter than this share of the step are drawn as what follows them."""


def sections(
    sentences: Sequence[str], steps: Sequence[Explained], found: Waterfall | None, tables: Sequence[Table]
) -> list[Section]:
    """What the page shows."""
    waterfall = [_waterfall(found)] if found is not None else []
    said = [Lines(title="", lines=tuple(some)) for some in (sentences[:1], sentences[1:]) if some]
    return [*said, *waterfall, *map(_timeline, steps), *tables]


def _waterfall(found: Waterfall) -> BarChart:
    """Each bar begins where the one above it ends."""
    step, slower, faster, noise = range(len(DIFFERENCES))
    at = found.before.step_s
    bars = [_whole(found.before, step)]
    for bar in rows_of(found):
        difference_s = bar.difference_s
        value = f"{bar.name}: {difference_s * 1e3:+.2f} ms"
        series = noise if bar.noise else slower if difference_s > 0 else faster
        blank = Part(series=None, value=min(at, at + difference_s), words="")
        bars.append(Bar(label=value, parts=(blank, Part(series=series, value=abs(difference_s), words=value))))
        at += difference_s
    return BarChart(
        name="waterfall",
        title="Waterfall",
        x_label="ms of a step",
        x_unit=1e-3,
        series=DIFFERENCES,
        bars=(*bars, _whole(found.after, step)),
        notes=("Each bar begins where the one above it ends: the bars lead from one step to the other.",),
    )


def _whole(one: Explained, series: int) -> Bar:
    words = f"{one.name}: {units.ms(one.step_s)} ms"
    return Bar(label=words, parts=(Part(series=series, value=one.step_s, words=words),))


def _timeline(one: Explained) -> BarChart:
    """The step in the middle; above the rank's bar, when a collective is in flight."""
    number = min(len(division.windows) for division in one.divisions) // 2
    start = min(division.windows[number][0] for division in one.divisions)
    return BarChart(
        name=f"timeline {one.name}",
        title=f"One step of {one.name} over time",
        x_label="ms since the first rank began",
        x_unit=1e-3,
        series=KINDS,
        bars=tuple(bar for division in one.divisions for bar in _rank(division, division.windows[number], start)),
        notes=("Each rank has two bars: its collectives in flight, and what it does itself.",),
    )


def _rank(division: Division, window: Interval, start: int) -> Iterator[Bar]:
    spans = sorted(
        (since, until, part) for part, each in division.spans.items() for since, until in intersection(each, [window])
    )
    calls = intersection(division.communication, [window])
    if calls:
        exposed = parts.Part(parts.EXPOSED)
        yield Bar(
            label=f"rank {division.rank}: collectives in flight",
            parts=tuple(_spans([(*call, exposed) for call in calls], start, window, "in flight")),
        )
    yield Bar(label=f"rank {division.rank}", parts=tuple(_spans(spans, start, window)))


def _spans(
    spans: Sequence[tuple[int, int, parts.Part]], start: int, window: Interval, words: str = ""
) -> Iterator[Part]:
    """The spans from ``start`` on, one after the other."""
    finest, at, drawn = (window[1] - window[0]) * FINEST, start, start
    for since, until, part in spans:
        if since > at:
            yield Part(series=None, value=(since - drawn) / 1e9, words="")
            drawn = since
        at = until
        if at - drawn >= finest:
            took_s = (at - drawn) / 1e9
            told = f"{words or part.name}: {units.ms(took_s)} ms"
            yield Part(series=KINDS.index(part.kind), value=took_s, words=told)
            drawn = at
