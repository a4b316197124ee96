"""Charts: what is in them, and that their drawings are well-formed, the same every time, and escaped."""

from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from examples import CUDA_MACHINE, cell, launched, ok, rank, result, rss, vram, world
from hypothesis import given
from hypothesis import strategies as st

from bench.records.outcome import Failed, Oom, Reported, Result, Skipped
from bench.records.phases import PHASE_NAMES
from bench.report.merge_runs import merge
from bench.report.render import plots
from bench.report.render.plots import APART, Across, step_of
from bench.report.summary import summarize
from bench.report.tables.charts import MAX_BARS, MAX_PANELS, _colors, charts, memory, phases, throughput, tradeoff
from bench.report.tables.figure import LineChart, RatioChart
from bench.report.tables.sections import Report

HOSTILE = '"><img src=x onerror=alert(1)> </script><script>alert(1)</script> | ` & \x1b[31m \x00 \ud800'


def run() -> list[Result]:
    """Two backends on a GPU up to out of memory, one of which thrashes at its largest batch."""
    full = {1: (0.2, 30, 40), 8: (0.8, 50, 60), 12: (2.4, 76, 79)}
    found = []
    for backend in ("fsdp", "zero2"):
        for batch, (step_s, allocated, reserved) in full.items():
            seconds = step_s if backend == "fsdp" or batch < 12 else 1.1
            times = (seconds, seconds * 1.01, seconds * 0.99)
            ranks = [rank(n, times, backend=backend, memory=vram(allocated, reserved)) for n in (0, 1)]
            found.append(result(world(*ranks), backend=backend, batch=batch, machine=CUDA_MACHINE))
        oom = Oom(rank=0, phase="bwd", reason="no memory")
        found.append(result(oom, backend=backend, batch=16, machine=CUDA_MACHINE))
    return found


def test_throughput_has_every_measured_batch_with_its_interval_and_every_oom() -> None:
    chart = throughput(summarize(run()))
    (panel,) = chart.panels
    assert chart.series == ("fsdp", "zero2")
    assert [[point.x for point in line.points] for line in panel.lines] == [[1, 8, 12]] * 2
    assert panel.lines[0].points[1].y == pytest.approx(8 * 2 / 0.8)
    assert all(point.interval and point.interval[0] < point.y < point.interval[1] for point in panel.lines[0].points)
    assert [(miss.x, miss.series) for miss in panel.misses] == [(16, 0), (16, 1)]


def test_the_settings_of_several_tasks_have_a_reference_each_and_the_chart_says_so() -> None:
    def ratios(*num_cams: int) -> RatioChart:
        each = [(name, cams, 0.1 * cams * (1 + (name == "fsdp"))) for name in ("ddp", "fsdp") for cams in num_cams]
        results = [result(ok((s,) * 3, (s,) * 3), backend=name, axes={"num_cams": cams}) for name, cams, s in each]
        [chart] = [chart for chart in Report(results=results).charts if isinstance(chart, RatioChart)]
        return chart

    assert ratios(1).title == "Throughput against the recommended setting"
    assert "Each task" not in ratios(1).notes[0]
    assert ratios(1, 4).title == "Throughput against the recommended setting of its task"
    words = "Each task has its own 1×: 40.0 samples/s for num_cams 1; 10.0 samples/s for num_cams 4."
    assert words in ratios(1, 4).notes[0]


def test_a_batch_that_thrashes_is_hollow() -> None:
    panel = throughput(summarize(run())).panels[0]
    assert [[point.hollow for point in line.points] for line in panel.lines] == [[False, False, True], [False] * 3]


def test_memory_shows_reserved_allocated_and_capacity() -> None:
    gib = 2**30
    panel = memory(summarize(run())).panels[0]
    assert [(line.series, line.dashed) for line in panel.lines] == [(0, False), (0, True), (1, False), (1, True)]
    assert [point.y for point in panel.lines[0].points] == [40 * gib, 60 * gib, 79 * gib]
    assert [point.y for point in panel.lines[1].points] == [30 * gib, 50 * gib, 76 * gib]
    assert [limit.y for limit in panel.limits] == [80 * gib]


def test_a_capacity_far_above_is_said_and_not_drawn() -> None:
    chart = memory(summarize([result(world(rank(memory=vram(1, 2, 80))), machine=CUDA_MACHINE)]))
    assert chart.panels[0].limits == ()
    assert "Far above the drawn range: capacity 80.00 GiB." in chart.notes


def test_capacities_that_hardly_differ_are_one_line() -> None:
    results = [
        result(world(rank(memory=vram(30, 40, capacity))), batch=batch, machine=CUDA_MACHINE)
        for batch, capacity in ((1, 78.9), (2, 79.1), (4, 40.0))
    ]
    assert [round(limit.y / 2**30, 1) for limit in memory(summarize(results)).panels[0].limits] == [40.0, 78.9]


def test_imported_figures_are_drawn_with_what_they_have() -> None:
    figures = {"peak_reserved_bytes_rank_max": 60 * 2**30, "capacity_share_rank_max": 0.75}
    outcome = Reported(source="a table", samples_per_s_global=6.2, figures=figures)
    summary = summarize([result(outcome, machine=CUDA_MACHINE)])
    assert throughput(summary).panels[0].lines[0].points[0].interval is None
    assert [limit.y for limit in memory(summary).panels[0].limits] == [80 * 2**30]
    assert [chart.name for chart in charts(summary)] == ["throughput", "memory"]


def test_phases_are_parts_of_a_bar_that_sum_to_its_total() -> None:
    chart = phases(summarize([result(), result(backend="zero2")]))
    assert chart.series == PHASE_NAMES
    assert [sum(part.value for part in bar.parts) for bar in chart.bars] == [pytest.approx(0.1)] * 2
    assert any("DeepSpeed" in note for note in chart.notes)
    assert not any("DeepSpeed" in note for note in phases(summarize([result()])).notes)


def test_many_cells_become_panels_that_share_their_scales() -> None:
    axes = [{"num_cams": cams, "attention": attention} for cams in (1, 4) for attention in ("sdpa", "eager")]
    chart = throughput(summarize([result(backend=name, axes=one) for name in ("ddp", "fsdp") for one in axes]))
    assert chart.series == ("ddp", "fsdp")
    assert [panel.title for panel in chart.panels] == [
        "num_cams 1, attention sdpa",
        "num_cams 1, attention eager",
        "num_cams 4, attention sdpa",
        "num_cams 4, attention eager",
    ]
    assert all([line.series for line in panel.lines] == [0, 1] for panel in chart.panels)


def test_a_long_title_of_a_panel_is_wrapped_above_the_label_of_its_axis() -> None:
    axes = [{"num_cams": cams, "note": "with many words " * 6} for cams in range(4)]
    chart = throughput(summarize([result(backend=name, axes=one) for name in ("ddp", "fsdp") for one in axes]))
    long = replace(chart.panels[0], title="with many words " * 6)
    root = ElementTree.fromstring(plots.drawing(replace(chart, panels=(long,)), long))
    texts = [node for node in root.iter() if node.tag.endswith("text")]
    lines = [node for node in texts if node.get("class") == "panel"]
    assert " ".join(node.text or "" for node in lines) == ("with many words " * 6).strip()
    assert len(lines) == 2
    assert all(len(node.text or "") <= plots.TITLE_LETTERS for node in lines)
    below = [float(node.get("y", "0")) for node in texts if node.text == "samples/s"]
    assert below[0] > max(float(node.get("y", "0")) for node in lines)


def test_a_chart_that_would_not_end_says_what_it_leaves_out() -> None:
    summary = summarize([result(backend=name, axes={"x": x}) for x in range(40) for name in ("ddp", "fsdp")])
    assert len(throughput(summary).panels) == MAX_PANELS
    assert throughput(summary).notes[-1].startswith(f"The first {MAX_PANELS} of 40")
    assert set(_colors(summary).values()) == {0, 1}
    assert len(_colors(summary)) == 80, "a cell that no panel shows has its backend's color in other charts"
    assert len(phases(summary).bars) == MAX_BARS
    assert f"the first {MAX_BARS} of 80 cells" in phases(summary).notes[-1]


def test_nothing_measured_draws_nothing() -> None:
    assert charts(summarize([])) == []
    assert charts(summarize([result(Skipped(reason="no")), result(Failed(rank=0, phase=None, reason="x"))])) == []


def test_only_oom_is_still_a_chart() -> None:
    (chart,) = charts(summarize([result(Oom(rank=0, phase="setup", reason="no"))]))
    assert chart.name == "throughput"
    ElementTree.fromstring(plots.svg(chart))


def test_a_drawing_is_well_formed_and_the_same_every_time() -> None:
    for chart, again in zip(charts(summarize(run())), charts(summarize(run())), strict=True):
        assert plots.svg(chart) == plots.svg(again)
        root = ElementTree.fromstring(plots.svg(chart))
        assert root.tag.endswith("svg")
        assert all("nan" not in value and "inf" not in value for node in root.iter() for value in node.attrib.values())


@pytest.mark.parametrize("n_cells", [2, 9], ids=["one panel", "panels"])
def test_hostile_words_are_words(n_cells: int) -> None:
    oom = Oom(rank=0, phase="bwd", reason=HOSTILE)
    named = [{HOSTILE: f"{HOSTILE}{number}"} for number in range(n_cells)]
    results = [result(backend=name, axes=axes) for axes in named for name in ("ddp", "zero2")]
    for chart in charts(summarize([*results, result(oom, batch=8, axes=named[0])])):
        root = ElementTree.fromstring(plots.svg(chart))
        assert not {node.tag.rpartition("}")[2] for node in root.iter()} & {"script", "img"}
        assert not any(name.startswith("on") for node in root.iter() for name in node.attrib)
        assert "<script>alert(1)</script>" in "".join(root.itertext())


def test_a_file_loads_nothing() -> None:
    for chart in charts(summarize(run())):
        text = plots.svg(chart).replace("http://www.w3.org/2000/svg", "")
        assert not any(word in text for word in ("http", "url(", "@import", "href"))


@given(values=st.sets(st.integers(1, 1000), min_size=1), doubling=st.booleans())
def test_a_larger_batch_lies_further_right_and_ticks_stand_at_measured_values(values: set[int], doubling: bool) -> None:
    low, high = min(values), max(values)
    scale = Across(low=low, high=high + 1, doubling=doubling, values=tuple(sorted(values)))
    ticks = list(scale.ticks())
    places = [scale(tick) for tick in ticks]
    assert places == sorted(places)
    assert set(ticks) <= values
    assert high in ticks
    assert all(later - place >= APART for place, later in pairwise(places))


def test_a_line_for_each_setting_over_runs_the_oldest_first() -> None:
    runs = {
        name: [
            result(ok(times, times, backend=backend), backend=backend, batch=batch).model_copy(
                update={"started_at": f"2026-01-0{day}T00:00:00+00:00"}
            )
            for backend, times in (("ddp", (step_s,) * 3), ("zero2", (2 * step_s,) * 3))
            for batch in (2, 4)
        ]
        for name, day, step_s in (("second", 2, 0.2), ("first", 1, 0.1), ("third", 3, 0.4))
    }
    results, _ = merge(runs, dict.fromkeys(runs, ()))
    chart = next(chart for chart in Report(results=results).charts if chart.name == "history")
    assert isinstance(chart, LineChart)
    assert chart.series == ("ddp, batch 4", "zero2, batch 4")
    assert chart.notes == ("1: first; 2: second; 3: third.",)
    (panel,) = chart.panels
    assert [[(point.x, round(point.y)) for point in line.points] for line in panel.lines] == [
        [(1, 80), (2, 40), (3, 20)],
        [(1, 40), (2, 20), (3, 10)],
    ]
    (alone,) = (Report(results=of_run) for name, of_run in runs.items() if name == "first")
    assert "history" not in [chart.name for chart in alone.charts]


@given(reach=st.floats(1e-9, 1e15), at_most=st.integers(2, 10))
def test_a_step_divides_into_no_more_parts_than_asked_for(reach: float, at_most: int) -> None:
    step = step_of(reach, at_most)
    assert reach / step <= at_most
    assert reach / step > at_most / 3


def test_cells_that_only_their_id_tells_apart_are_drawn() -> None:
    results = [result(ok(), accelerate={"mine": number}) for number in range(9)]
    chart = throughput(summarize(results))
    assert cell(accelerate={"mine": 8}).id in " ".join([*chart.series, *(panel.title for panel in chart.panels)])


def test_memory_against_throughput_has_each_setting_and_the_capacity_where_it_is_in_sight() -> None:
    report = Report(results=run())
    [chart] = [chart for chart in report.charts if chart.name == "tradeoff"]
    assert isinstance(chart, LineChart)
    [panel] = chart.panels
    drawn = {(line.points[0].x, line.points[0].y) for line in panel.lines}
    rows = [one.row for one in report.settings if one.row and one.row.held is not None]
    assert drawn == {(float(f"{row.rate:.3g}"), row.held) for row in rows}
    assert len(drawn) > 1
    assert [limit.words for limit in panel.limits] == ["capacity"] * (max(y for _, y in drawn) > 1 / 8)


@given(st.lists(st.tuples(st.floats(12, 96), st.floats(40, 220)), max_size=20))
def test_names_beside_marks_cover_no_mark_and_no_other_name(at: list[tuple[float, float]]) -> None:
    names = [ElementTree.fromstring(text) for text in plots._labels([(x, y, "zero2, batch 4") for x, y in at])]
    width = len("zero2, batch 4") * plots.LETTER / plots.NARROW * 100
    places = [(float(name.attrib["x"].rstrip("%")), float(name.attrib["y"])) for name in names]
    for number, (x, y) in enumerate(places):
        assert 0 <= x <= 100 - width + 0.01
        assert not any(x <= mark_x <= x + width and abs(y - 4 - mark_y) < 10 for mark_x, mark_y in at)
        assert not any(
            abs(x - other_x) < width - 0.01 and abs(y - other_y) < 10 for other_x, other_y in places[:number]
        )


def test_settings_at_one_batch_are_named_without_it_and_the_axis_says_which() -> None:
    report = Report(results=[result(ok((s, s, s)), backend=b) for b, s in (("ddp", 0.1), ("fsdp", 0.2))])
    (ratios, *_) = charts(report.summary, report.settings)
    assert isinstance(ratios, RatioChart)
    assert [ratio.label for ratio in ratios.ratios] == ["ddp", "fsdp"]
    assert ratios.x_label == "ratio of throughputs at batch 2"
    several = Report(
        results=[result(ok((s, s, s)), backend=b, batch=n) for b, s, n in (("ddp", 0.1, 2), ("fsdp", 0.2, 4))]
    )
    (ratios, *_) = charts(several.summary, several.settings)
    assert ratios.x_label == "ratio of throughputs, each setting at its best batch"


def test_one_wide_interval_does_not_flatten_a_chart_and_slow_models_have_an_axis() -> None:
    wide = [launched(result(ok((s, s, s)), backend="ddp"), n) for n, s in enumerate((0.1, 0.1, 0.5), 1)]
    chart = throughput(summarize([*wide, result(ok((0.2, 0.2, 0.2)), backend="zero2")]))
    step, top = plots.heights(chart)
    assert top <= 2 * max(point.y for line in chart.panels[0].lines for point in line.points) + step
    slow = [result(ok((s, s, s), memory=rss(n)), backend=b) for b, s, n in (("ddp", 60.0, 6), ("fsdp", 40.0, 4))]
    report = Report(results=slow)
    scale = plots.across(tradeoff(report.summary, report.settings))
    assert scale.low > 0


def test_a_number_on_an_axis_has_all_its_digits() -> None:
    assert plots.plain(1234567) == "1234567"
