"""The report's page in a real Chromium."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from browser import NAMES, Page, browser, executable
from examples import ok, result

from bench.records.outcome import Failed, Oom
from bench.report.render import html
from bench.report.tables import sections
from bench.report.tables.table import Table

pytestmark = pytest.mark.skipif(
    executable() is None, reason=f"needs one of {', '.join(NAMES)} on PATH: apt-get install chromium"
)

ATTACK = "</script><script>window.attacked = 1</script><img src=x onerror='window.attacked = 2'>"
MATRIX = '[aria-label="All results"]'


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A report with results of every kind, and hostile text in names and errors."""
    folder = tmp_path_factory.mktemp("page")
    steps = {2: (0.43, 0.44, 0.45), 16: (0.9, 0.95, 0.9), 4: (0.842, 0.83, 0.854)}
    results = [result(ok(times, times), batch=batch) for batch, times in steps.items()]
    results += [
        result(Oom(rank=0, phase="bwd", reason=ATTACK), batch=32),
        result(ok((0.1,) * 3, (0.1,) * 3), backend="zero2", axes={"note": ATTACK}),
        result(Failed(rank=0, phase="start", reason=ATTACK), backend="fsdp"),
    ]
    file = folder / "report.html"
    report = sections.Report(results=results)
    file.write_text(html.render(report.sections, first=report.brief, details=report.details))
    with browser(folder / "profile") as opened:
        opened.open(file)
        yield opened


def column(page: Page, header: str) -> list[str]:
    return page.evaluate(
        f"""(() => {{
          const table = document.querySelector('{MATRIX} table');
          const at = [...table.tHead.rows[0].cells].findIndex((cell) => cell.textContent === '{header}');
          return [...table.tBodies[0].rows].map((row) => row.cells[at].textContent);
        }})()"""
    )


def test_a_click_on_a_header_sorts_by_number_and_a_third_one_brings_the_order_back(page: Page) -> None:
    header = f"{MATRIX} th:nth-child(3)"
    as_reported = column(page, "batch per rank")
    seen = []
    for _ in range(3):
        page.point_at(f"{header} button", click=True)
        seen.append((page.evaluate(f"document.querySelector('{header}').ariaSort"), column(page, "batch per rank")))
    by_number = sorted(as_reported, key=int)
    assert seen == [("ascending", by_number), ("descending", by_number[::-1]), ("none", as_reported)]
    assert by_number != sorted(as_reported)


def test_what_is_unknown_comes_last_either_way(page: Page) -> None:
    header = f"{MATRIX} th:nth-child(5)"
    for expected in (["9.09", "9.50", "34.9", "40.0"], ["40.0", "34.9", "9.50", "9.09"]):
        page.point_at(f"{header} button", click=True)
        assert column(page, "samples/s") == [*expected, "", ""]
    page.point_at(f"{header} button", click=True)


def test_sizes_are_sorted_by_their_bytes(tmp_path: Path) -> None:
    sizes = ["138 MiB", "1.20 GiB", "n/a", "812 B", "-45.3 MiB", "2.00 KiB"]
    table = Table(
        title="All results", headers=("held",), rows=tuple((each,) for each in sizes), numeric=frozenset({"held"})
    )
    file = tmp_path / "report.html"
    file.write_text(html.render([table]))
    with browser(tmp_path / "profile") as page:
        page.open(file)
        page.point_at(f"{MATRIX} th button", click=True)
        assert column(page, "held") == ["-45.3 MiB", "812 B", "2.00 KiB", "138 MiB", "1.20 GiB", "n/a"]


def test_the_keyboard_sorts_too(page: Page) -> None:
    page.evaluate(f"document.querySelector('{MATRIX} th:nth-child(1) button').focus()")
    page.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", text="\r", windowsVirtualKeyCode=13)
    page.call("Input.dispatchKeyEvent", type="keyUp", key="Enter", code="Enter", windowsVirtualKeyCode=13)
    assert column(page, "backend") == ["ddp"] * 4 + ["fsdp", "zero2"]


def test_a_chart_gives_back_what_was_measured(page: Page) -> None:
    points = page.evaluate(
        "[...document.querySelectorAll('[data-chart=throughput] .point')].map((point) => ({...point.dataset}))"
    )
    of_ddp = {int(point["x"]): point for point in points if point["series"] == "0"}
    assert {batch: float(point["y"]) for batch, point in of_ddp.items()} == {
        batch: pytest.approx(batch * 2 / mean) for batch, mean in {2: 0.44, 4: 0.842, 16: 2.75 / 3}.items()
    }
    assert all(float(point["low"]) < float(point["y"]) < float(point["high"]) for point in of_ddp.values())
    misses = page.evaluate(
        "[...document.querySelectorAll('[data-chart=throughput] .miss')].map((miss) => miss.dataset.x)"
    )
    assert misses == ["32"]


def test_higher_throughput_is_drawn_higher_and_a_larger_batch_further_right(page: Page) -> None:
    drawn = page.evaluate(
        "[...document.querySelectorAll('[data-chart=throughput] .point[data-series=\"0\"]')].map((point) => {"
        " const {x, y} = point.dataset, at = point.getBoundingClientRect();"
        " return {x: +x, y: +y, left: at.x, top: at.y}})"
    )
    assert [point["x"] for point in sorted(drawn, key=lambda point: point["left"])] == [2, 4, 16]
    assert sorted(drawn, key=lambda point: -point["top"]) == sorted(drawn, key=lambda point: point["y"])


def test_a_mark_says_what_it_is_to_the_mouse_and_to_the_keyboard(page: Page) -> None:
    tip = "(() => { const tip = document.getElementById('tip'); return tip.hidden ? null : tip.textContent; })()"
    page.point_at("[data-chart=throughput] .point")
    assert "samples/s" in page.evaluate(tip)
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
    assert page.evaluate(tip) is None
    page.evaluate("document.querySelector('[data-chart=phases] .drawing').focus()")
    page.press("ArrowRight")
    assert "dataload_wait" in page.evaluate(tip)
    page.press("ArrowRight")
    assert "forward" in page.evaluate(tip)
    page.press("Escape")
    assert page.evaluate(tip) is None


def test_the_legend_hides_a_series_and_shows_it_again(page: Page) -> None:
    button = "[data-chart=throughput] [data-toggles='0']"
    shown = (
        f'[document.querySelector("{button}").ariaPressed,'
        " [...document.querySelectorAll('[data-chart=throughput] .point')].filter((it) => it.checkVisibility()).length]"
    )
    assert page.evaluate(shown) == ["true", 4]
    page.point_at(button, click=True)
    assert page.evaluate(shown) == ["false", 1]
    page.point_at(button, click=True)
    assert page.evaluate(shown) == ["true", 4]


def test_ratios_stand_on_one_scale_with_the_band_that_is_even(tmp_path: Path) -> None:
    report = sections.Report(results=[result(), result(ok((0.13,) * 3, (0.13,) * 3, backend="zero2"), backend="zero2")])
    file = tmp_path / "report.html"
    file.write_text(html.render(report.sections, first=report.brief))
    with browser(tmp_path / "profile") as page:
        page.open(file)
        check_ratios(page)


def check_ratios(page: Page) -> None:
    boxes = page.evaluate(
        "[...document.querySelectorAll('[data-chart=ratios] :is(.point, .interval, .band, .axis)')].map((it) => {"
        " const box = it.getBoundingClientRect();"
        " return {kind: it.classList.contains('point') ? 'point' : it.classList[it.classList.length - 1],"
        " value: +it.dataset.x, low: +it.dataset.low, high: +it.dataset.high,"
        " left: box.left, right: box.right, middle: box.left + box.width / 2}})"
    )
    (axis,), (band,) = ([box for box in boxes if box["kind"] == kind] for kind in ("axis", "band"))
    points, bars = ([box for box in boxes if box["kind"] == kind] for kind in ("point", "interval"))
    assert [point["value"] == 1 for point in points].count(True) == 1
    assert len(points) == len(bars) + 1 >= 2  # the recommended setting has no interval
    assert band["left"] < axis["middle"] < band["right"]
    one = next(point for point in points if point["value"] == 1)
    other = next(point for point in points if point["value"] != 1)
    assert one["middle"] == pytest.approx(axis["middle"], abs=1)
    by_pixel = (other["middle"] - one["middle"]) / (other["value"] - 1)
    assert band["left"] == pytest.approx(axis["middle"] + by_pixel * (1 / 1.05 - 1), abs=1.5)
    assert bars[0]["left"] == pytest.approx(axis["middle"] + by_pixel * (other["low"] - 1), abs=1.5)
    assert bars[0]["right"] == pytest.approx(axis["middle"] + by_pixel * (other["high"] - 1), abs=1.5)


def test_the_settings_and_the_commands_are_copied_for_a_pull_request(page: Page) -> None:
    page.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])

    def copied(button: str) -> str:
        page.point_at(button, click=True)
        return str(page.evaluate("navigator.clipboard.readText()"))

    lines = copied(".first .scroll + .copy").splitlines()
    assert lines[0].startswith("| backend | note | batch | samples/s |")
    assert lines[1].startswith("| --- | --- | ---: | ---: |")
    assert len(lines) == 2 + page.evaluate("document.querySelectorAll('.first tbody tr').length")
    assert any(line.startswith("| zero2") and "**40.0**" in line for line in lines)
    command = copied(".first code + .copy")
    assert command == page.evaluate("document.querySelector('.first code:has(+ .copy)').textContent")
    assert command.startswith("bench ")


def test_a_row_opens_its_ranks_its_phases_and_its_files(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    report = sections.Report(results=[result(), result(Oom(rank=1, phase="bwd", reason="no memory"), backend="zero2")])
    file.write_text(html.render(report.sections, first=report.brief, details=report.details))
    with browser(tmp_path / "profile") as page:
        page.open(file)
        opened = "[...document.querySelectorAll('details')].map((each) => each.open)"
        assert page.evaluate(opened) == [False, False]
        page.evaluate("window.followed = new Promise((done) => addEventListener('hashchange', () => done(true))); 0")
        page.point_at(".first tbody tr:nth-child(1) a", click=True)
        assert page.evaluate("window.followed")
        assert page.evaluate(opened) == [True, False]
        text = page.evaluate("document.querySelector('details[open]').textContent")
        assert all(word in text for word in ("Ranks", "Phases", "optim_step"))
        links = "[...document.querySelectorAll('details a')].map((each) => each.getAttribute('href'))"
        assert page.evaluate(links) == [f"attempts/{each.attempt.slug}/result.json" for each in report.results]
        assert "no memory" in page.evaluate("document.querySelectorAll('details')[1].textContent")


def test_filters_show_the_rows_of_a_setting(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    names = [(backend, cameras) for backend in ("ddp", "zero2") for cameras in (1, 4)]
    steps = (0.43, 0.44, 0.45)
    results = [
        result(ok(steps, steps, backend=name), backend=name, axes={"num_cams": cameras}) for name, cameras in names
    ]
    report = sections.Report(results=results)
    file.write_text(html.render(report.sections, first=report.brief, details=report.details))
    shown = (
        "[...document.querySelectorAll('.first tbody tr')].filter((row) => row.checkVisibility())"
        ".map((row) => JSON.parse(row.dataset.axes)).map((axes) => [axes.backend, axes.num_cams])"
    )
    with browser(tmp_path / "profile") as page:
        page.open(file)
        assert sorted(page.evaluate(shown)) == [[name, str(cameras)] for name, cameras in names]
        for axis, value in (("backend", "zero2"), ("num_cams", "4")):
            page.evaluate(
                f"(() => {{ const filter = document.querySelector('[name={axis}]'); filter.value = '{value}';"
                " filter.dispatchEvent(new Event('change', {bubbles: true})); })()"
            )
        assert page.evaluate(shown) == [["zero2", "4"]]


CONTRAST = """(() => {
  const luminance = (color) => {
    const [r, g, b] = color.match(/[0-9.]+/g).map((part) => part / 255)
      .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = getComputedStyle(at).backgroundColor;
      if (!color.includes('rgba')) return color;
    }
    return 'rgb(255, 255, 255)';
  };
  return [...document.querySelectorAll('h1, h2, h3, p, li, a, td, th button, summary, dt, dd, label, code')]
    .filter((each) => each.checkVisibility() && each.textContent.trim())
    .map((each) => [luminance(getComputedStyle(each).color), luminance(behind(each)), each.outerHTML.slice(0, 80)])
    .map(([one, other, html]) => [(Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05), html])
    .filter(([ratio]) => ratio < 4.5);
})()"""
"""Text that stands out from its background by less than WCAG 2.2, 1.4.3, demands."""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_can_be_read_and_everything_has_a_name(page: Page, theme: str) -> None:
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
    page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    assert page.evaluate(CONTRAST) == []
    page.evaluate("for (const each of document.querySelectorAll('details')) each.open = false")
    nameless = (
        "[...document.querySelectorAll('button, select, a, svg[role], [role=region], nav')]"
        ".filter((it) => !(it.ariaLabel || it.textContent.trim() || it.labels?.length)).map((it) => it.outerHTML)"
    )
    assert page.evaluate(nameless) == []
    regions = page.evaluate("[...document.querySelectorAll('[role=region], nav')].map((it) => it.ariaLabel)")
    assert len(regions) == len(set(regions))
    levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3')].map((it) => +it.tagName[1])")
    assert levels[0] == 1
    assert all(later <= level + 1 for level, later in pairwise(levels))
    assert page.evaluate("[document.documentElement.lang, document.title !== '']") == ["en", True]
    page.call("Emulation.setEmulatedMedia", features=[])


@pytest.mark.parametrize("width", [360, 768, 1200])
def test_only_tables_scroll_sideways(page: Page, width: int) -> None:
    page.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.call("Emulation.clearDeviceMetricsOverride")


def test_nothing_is_loaded_nothing_is_run_but_the_page_and_nothing_complains(page: Page) -> None:
    """Runs last: it checks the requests and errors of all other tests."""
    requests = [event["request"]["url"] for event in page.happened("Network.requestWillBeSent")]
    assert [url.rpartition("/")[2] for url in requests] == ["report.html"]
    assert page.happened("Log.entryAdded") == []
    assert page.happened("Runtime.consoleAPICalled") == []
    assert page.happened("Runtime.exceptionThrown") == []
    assert page.evaluate("typeof window.attacked") == "undefined"
    assert page.evaluate("document.querySelectorAll('script').length") == 1
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    assert ATTACK in page.evaluate("document.body.textContent")


def test_the_policy_stops_what_is_not_the_pages_own(tmp_path: Path) -> None:
    """Even if a string were not escaped, it would not run and would load nothing."""
    text = html.render(sections.Report(results=[result()]).sections)
    file = tmp_path / "broken.html"
    file.write_text(text.replace("<main>", f"<main>{ATTACK.removeprefix('</script>')}"))
    with browser(tmp_path / "profile") as page:
        page.open(file)
        assert page.evaluate("typeof window.attacked") == "undefined"
        assert page.happened("Log.entryAdded")
