"""The charts of a report as data. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from bench.records.figures import CAPACITY, CAPACITY_SHARE, PEAK_ALLOCATED, PEAK_RESERVED
from bench.records.phases import PHASE_NAMES, REST, SHOWN_PHASES
from bench.report.controlled import RUN
from bench.report.naming import batch_in_words, cell_name, ends, row_name, settings_name, short_reason
from bench.report.rows import CellRows, Measured, Phases, Row, Summary
from bench.report.tables.advice import in_task
from bench.report.tables.brief import Setting, some
from bench.report.tables.figure import (
    WIDEST,
    Bar,
    BarChart,
    Chart,
    Limit,
    Line,
    LineChart,
    Miss,
    Panel,
    Part,
    Point,
    Ratio,
    RatioChart,
)
from bench.report.tables.steps import DEEPSPEED_NOTE, under_deepspeed
from bench.statistics.verdict import MARGIN
from bench.units import GIB, counted, gib, memory_size, ms, percent, rate

TOGETHER = 6
"""Most lines in one panel. With more cells, only those that differ in one setting share a panel."""
MAX_PANELS = 12
MAX_BARS = 24
SHORT_NAME = 20
"""Letters of a name that may stand beside a mark."""
MAX_HISTORY = 8
"""Lines in the chart of several runs: more than there are colors cannot be told apart."""
NEAR = 0.02
"""Capacities that differ by less than this share are one line: on a GPU, free memory varies between attempts."""
IN_SIGHT = 8
"""Capacity is drawn up to this many times the highest peak. Above it, the peaks would look like a flat line."""


INTERVALS = (
    "Pale bars: 95 % confidence interval of the throughput, from the variation between launches, or else of steps;"
    " hidden where it is smaller than the mark, and cut at the upper edge."
)
Group = tuple[str, list[tuple[int, CellRows]]]
"""A panel's title, and its cells with the number of their series."""


def charts(summary: Summary, settings: Sequence[Setting] = (), runs: Sequence[str] = ()) -> list[Chart]:
    """Ratios of the settings, their memory, then throughput, memory and phases by batch; without empty ones.

    Args:
        runs: the names of several runs, the oldest first: their history is drawn, too.
    """
    compared, bars = ratios(summary, settings), phases(summary)
    return [
        *([compared] if len(compared.ratios) > 1 else []),
        *([both] if (both := tradeoff(summary, settings)).panels[0].limits else []),
        *([over_time] if (over_time := history(summary, runs)).series else []),
        *(chart for chart in (throughput(summary), memory(summary)) if chart.series),
        *([bars] if bars.bars else []),
    ]


def ratios(summary: Summary, settings: Sequence[Setting]) -> RatioChart:
    """The settings against the recommended one of their task, as the table of the short report has them."""
    series = _colors(summary)
    drawn = [setting for setting in settings if setting.row and (setting.ratio or setting.is_chosen)]
    left_out = f" The first {MAX_BARS} of {len(drawn)} settings." if len(drawn) > MAX_BARS else ""
    rows = [setting.row for setting in drawn if setting.row]
    same_batch = len({row.batch_per_rank for row in rows}) == 1
    named = cell_name if same_batch else row_name
    shown = tuple(_against(summary, setting, series, named) for setting in drawn[:MAX_BARS])
    most = WIDEST * max((ratio.value for ratio in shown), default=1.0)
    leads = any(setting.is_chosen and setting.verdict == "leading" for setting in drawn)
    reference = f"the {'leading' if leads else 'recommended'} setting"
    tasks = [
        f"{rate(one.row.rate)} samples/s {in_task(one.advice)}"
        for one in drawn
        if one.row and one.advice and one.is_chosen
    ]
    of_tasks = f" Each task has its own 1×: {some(tasks)}." if len(tasks) > 1 else ""
    cut = any(ratio.interval and ratio.interval[1] > most for ratio in shown)
    return RatioChart(
        name="ratios",
        title=f"Throughput against {reference}{' of its task' if of_tasks else ''}",
        x_label=f"ratio of throughputs{_at(rows)}",
        ratios=shown,
        even=(1 / (1 + MARGIN), 1 + MARGIN),
        most=most,
        notes=(
            "Pale bars: the interval, as in the table. Hollow: not decided."
            f" Shaded: within {percent(MARGIN)} of 1; an interval that lies inside is even.{of_tasks}"
            f"{f' Bars that end at {most:.3g}× go on.' if cut else ''}{left_out}",
        ),
    )


def _at(rows: Sequence[Row]) -> str:
    """At which batches a chart has the settings."""
    batches = {row.batch_per_rank for row in rows}
    if len(batches) == 1:
        return f" at batch {next(iter(batches))}"
    return ", each setting at its best batch" if len({row.id.cell for row in rows}) == len(rows) else ""


def _against(
    summary: Summary,
    setting: Setting,
    series: Mapping[tuple[str, ...], int],
    named: Callable[[Summary, Row], str],
) -> Ratio:
    assert setting.row
    name, ratio = row_name(summary, setting.row), setting.ratio
    said = f"{ratio.estimate:.2f}× ({ends(ratio.decides)}), " if ratio else ""
    return Ratio(
        label=named(summary, setting.row),
        series=series.get(setting.row.id.cell, 0),
        value=ratio.estimate if ratio else 1.0,
        interval=ratio.decides if ratio else None,
        words=f"{name}: {said}{setting.verdict}",
        hollow=bool(ratio and not ratio.decided),
    )


def tradeoff(summary: Summary, settings: Sequence[Setting]) -> LineChart:
    """The share of memory that each of several settings of the short report holds, by its throughput. Without a limit
    where none comes close to it: there is nothing to trade."""
    drawn = [(one.cell, one.row) for one in settings if one.row and one.row.held is not None]
    series = _colors(summary)
    in_sight = max((row.held or 0.0 for _, row in drawn), default=0.0) > 1 / IN_SIGHT
    of_cells = len({row.id.cell for _, row in drawn}) > 1  # else the batch tells the points apart
    points = [
        Line(series=series.get(row.id.cell, 0), points=(_held(summary, cell, row, of_cells=of_cells),))
        for cell, row in drawn[:MAX_BARS]
    ]
    return LineChart(
        name="tradeoff",
        title="Memory against throughput",
        y_label="% of memory used",
        y_unit=0.01,
        panels=(
            Panel(
                title="",
                lines=tuple(points),
                limits=(Limit(y=1.0, words="capacity"),) if in_sight and len(points) > 1 else (),
            ),
        ),
        x_label=f"samples/s{_at([row for _, row in drawn])}",
        may_double=False,
        at_values=False,
        notes=("Hollow: must not be recommended.",) if any(one.points[0].hollow for one in points) else (),
    )


def _held(summary: Summary, cell: CellRows, row: Row, *, of_cells: bool) -> Point:
    name, held = row_name(summary, row), row.held or 0.0
    short = cell_name(summary, row) if of_cells else batch_in_words(row)
    return Point(
        x=float(f"{row.rate:.3g}"),
        y=held,
        words=f"{name}: {rate(row.rate)} samples/s, {percent(held)} of memory",
        hollow=not cell.is_sound(row),
        label=short if len(short) <= SHORT_NAME else str(row.settings["backend"]),
    )


def history(summary: Summary, runs: Sequence[str]) -> LineChart:
    """Throughput by run: a line for each setting, at the largest batch that the most runs measured."""
    others = [name for name in summary.columns if name != RUN]
    by_setting: dict[tuple[str, int], dict[int, tuple[Row, Measured]]] = {}
    for cell in summary.cells if RUN in summary.columns else ():
        for row in cell.sound:
            if row.measured and not row.short and (run := str(row.settings.get(RUN))) in runs:
                name = settings_name(row.settings, others) or str(row.settings["backend"])
                by_setting.setdefault((name, row.batch_per_rank), {})[runs.index(run) + 1] = row, row.measured
    chosen = dict(sorted(by_setting, key=lambda key: (len(by_setting[key]), key[1])))
    found = [(f"{name}, batch {batch}", by_setting[name, batch]) for name, batch in chosen.items()]
    lines = [(name, points) for name, points in found if len(points) > 1]
    drawn, left_out = lines[:MAX_HISTORY], max(0, len(lines) - MAX_HISTORY)
    return LineChart(
        name="history",
        title="Throughput over runs",
        y_label="samples/s",
        y_unit=1,
        series=tuple(name for name, _ in drawn),
        panels=(
            Panel(
                title="",
                lines=tuple(
                    Line(series=number, points=tuple(_of_run(runs, at, *points[at]) for at in sorted(points)))
                    for number, (_, points) in enumerate(drawn)
                ),
            ),
        ),
        x_label="run, the oldest first",
        may_double=False,
        notes=(
            f"{'; '.join(f'{number}: {run}' for number, run in enumerate(runs, 1))}.",
            *([f"{counted(left_out, 'more setting')} in the table."] if left_out else []),
        ),
    )


def _of_run(runs: Sequence[str], number: int, row: Row, measured: Measured) -> Point:
    return Point(
        x=number,
        y=measured.samples_per_s_global,
        interval=measured.interval,
        words=f"{runs[number - 1]}, batch {row.batch_per_rank}: {rate(measured.samples_per_s_global)} samples/s",
    )


def throughput(summary: Summary) -> LineChart:
    """Throughput by batch, with the batches that ran out of memory."""
    series, groups, notes = _groups(summary)
    panels = tuple(
        Panel(
            title=title,
            lines=tuple(Line(series=number, points=tuple(_rates(summary, cell))) for number, cell in cells),
            misses=tuple(_misses(summary, cells)),
        )
        for title, cells in groups
    )
    intervals = any(point.interval for panel in panels for line in panel.lines for point in line.points)
    hollow = any(point.hollow for panel in panels for line in panel.lines for point in line.points)
    return LineChart(
        name="throughput",
        title="Throughput against batch",
        y_label="samples/s",
        y_unit=1,
        series=series,
        panels=panels,
        notes=(
            *([INTERVALS] if intervals else []),
            *(["Hollow: thrashing or invalid; must not be recommended."] if hollow else []),
            *(["Crosses: out of memory."] if any(panel.misses for panel in panels) else []),
            *notes,
        ),
    )


def memory(summary: Summary) -> LineChart:
    """Peaks of the worst rank by batch, and the memory that a rank may use."""
    series, groups, notes = _groups(summary)
    panels = tuple(
        Panel(
            title=title,
            lines=tuple(line for number, cell in cells for line in _peaks(summary, number, cell)),
            misses=tuple(_misses(summary, cells)),
            limits=tuple(_limits([cell for _, cell in cells])),
        )
        for title, cells in groups
    )
    peaks = [point.y for panel in panels for line in panel.lines for point in line.points]
    far = [limit for panel in panels for limit in panel.limits if limit.y > IN_SIGHT * max(peaks, default=0)]
    drawn = tuple(replace(panel, limits=tuple(limit for limit in panel.limits if limit not in far)) for panel in panels)
    dashed = any(line.dashed for panel in panels for line in panel.lines)
    what = "Solid: reserved by the allocator. Dashed: allocated. " if dashed else "Allocated memory. "
    beyond = ", ".join(dict.fromkeys(limit.words for limit in far))
    return LineChart(
        name="memory",
        title="Memory against capacity",
        y_label="GiB",
        y_unit=GIB,
        series=series if peaks else (),
        panels=drawn,
        notes=(
            f"{what}Peaks of the worst rank.",
            *([f"Far above the drawn range: {beyond}."] if far else []),
            *notes,
        ),
    )


def phases(summary: Summary) -> BarChart:
    """Where the time of a step goes."""
    drawn = [(row, complete) for row in summary.rows if (complete := _complete_phases(row))]
    notes = [DEEPSPEED_NOTE] if any(under_deepspeed(row) for row, _ in drawn) else []
    if len(drawn) > MAX_BARS:
        best = [
            (cell.best, complete) for cell in summary.cells if cell.best and (complete := _complete_phases(cell.best))
        ]
        left_out = f"; the first {MAX_BARS} of {len(best)} cells" if len(best) > MAX_BARS else ""
        notes.append(f"Each cell at its best batch{left_out}; the tables hold all others.")
        drawn = best[:MAX_BARS]
    return BarChart(
        name="phases",
        title="Where the time of a step goes",
        x_label="ms a step",
        x_unit=1e-3,
        series=SHOWN_PHASES if any(REST in complete[0].parts for _, complete in drawn) else PHASE_NAMES,
        bars=tuple(_bar(row_name(summary, row), *complete) for row, complete in drawn),
        notes=("Means of the phase window, of its slowest rank.", *notes),
    )


def _groups(summary: Summary, most: int | None = MAX_PANELS) -> tuple[tuple[str, ...], list[Group], list[str]]:
    """Names of the series, panels, and a note if some panels are left out."""
    cells = [cell for cell in summary.cells if any(row.measured or row.outcome == "oom" for row in cell.rows)]
    backends = {str(cell.rows[0].settings["backend"]) for cell in cells}
    colored_by = "backend" if len(backends) > 1 else summary.columns[-1] if summary.columns else "backend"
    others = [name for name in summary.columns if name != colored_by]
    if len(cells) <= TOGETHER or not others:
        names = tuple(cell_name(summary, cell.rows[0]) for cell in cells)
        return names, ([("", list(enumerate(cells)))] if cells else []), []
    names = tuple(dict.fromkeys(_named(cell.rows[0], [colored_by]) for cell in cells))
    panels: dict[str, list[tuple[int, CellRows]]] = {}
    for cell in cells:
        number = names.index(_named(cell.rows[0], [colored_by]))
        panels.setdefault(_named(cell.rows[0], others), []).append((number, cell))
    left_out = f"The first {MAX_PANELS} of {len(panels)} panels; the table holds all others."
    return names, list(panels.items())[:most], [left_out] if len(panels) > MAX_PANELS else []


def _colors(summary: Summary) -> Mapping[tuple[str, ...], int]:
    """The number of each cell's series, which is its color in every chart."""
    return {cell.rows[0].id.cell: number for _, cells in _groups(summary, None)[1] for number, cell in cells}


def _named(row: Row, names: Sequence[str]) -> str:
    return settings_name({name: row.settings.get(name) for name in names}, names)


def _rates(summary: Summary, cell: CellRows) -> Iterator[Point]:
    for row in cell.rows:
        if (measured := row.measured) is None:
            continue
        interval = measured.interval
        within = f", {rate(interval[0])} to {rate(interval[1])} with 95 % confidence" if interval else ""
        remarks = f", {cell.traits(row).word}" * (not cell.is_sound(row)) + ", short trial" * row.short
        yield Point(
            x=row.batch_per_rank,
            y=measured.samples_per_s_global,
            interval=interval,
            words=f"{row_name(summary, row)}: {rate(measured.samples_per_s_global)} samples/s{within}{remarks}",
            hollow=not cell.is_sound(row),
        )


def _misses(summary: Summary, cells: Sequence[tuple[int, CellRows]]) -> Iterator[Miss]:
    for number, row in ((number, row) for number, cell in cells for row in cell.rows if row.outcome == "oom"):
        words = f"{row_name(summary, row)}: out of memory, {short_reason(row.reason)}"
        yield Miss(x=row.batch_per_rank, series=number, words=words)


def _peaks(summary: Summary, series: int, cell: CellRows) -> Iterator[Line]:
    """Reserved memory, and allocated memory as a dashed line; on a CPU only allocated memory."""
    measured = [(row, row.measured) for row in cell.rows if row.measured]
    kinds = {
        "reserved": [figures.of(PEAK_RESERVED) for _, figures in measured],
        "allocated": [figures.of(PEAK_ALLOCATED) for _, figures in measured],
    }
    reserved = any(value is not None for value in kinds["reserved"])
    for kind, values in kinds.items():
        points = tuple(
            Point(
                x=row.batch_per_rank,
                y=value,
                words=f"{row_name(summary, row)}: {gib(value)} GiB {kind},"
                f" {percent(figures.of(CAPACITY_SHARE))} of memory used",
                hollow=not cell.is_sound(row),
            )
            for (row, figures), value in zip(measured, values, strict=True)
            if value is not None
        )
        if points:
            yield Line(series=series, points=points, dashed=kind == "allocated" and reserved)


def _limits(cells: Sequence[CellRows]) -> Iterator[Limit]:
    measured = [row.measured for cell in cells for row in cell.rows if row.measured]
    known = sorted(
        capacity
        for figures in measured
        if (capacity := figures.of(CAPACITY)) is not None
        and (figures.of(PEAK_RESERVED) or figures.of(PEAK_ALLOCATED)) is not None
    )
    lowest = 0.0
    for capacity in known:
        if capacity > lowest * (1 + NEAR):
            lowest = capacity
            yield Limit(y=capacity, words=f"capacity {memory_size(capacity)}")


def _complete_phases(row: Row) -> tuple[Phases, float] | None:
    """All phases and their total, in seconds. A bar with some phases missing would look like a short step."""
    phases = row.phases
    return (phases, phases.total.mean_s) if phases and phases.total and phases.complete else None


def _bar(name: str, phases: Phases, total_s: float) -> Bar:
    return Bar(
        label=f"{name}: {ms(total_s)} ms",
        parts=tuple(
            Part(
                series=SHOWN_PHASES.index(phase),
                value=times.mean_s,
                words=f"{name}: {phase} {ms(times.mean_s)} ms, {percent(phases.share(phase))} of total",
            )
            for phase, times in phases.parts.items()
        ),
    )
