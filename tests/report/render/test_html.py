"""The page: its structure, what it must escape, and that it loads nothing."""

import base64
import hashlib
import os
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from commands import bench, full_report
from examples import MACHINE, MATRIX_YAML, cell, mixed, ok, result, stored
from typer.testing import CliRunner

from bench.cli.app import app
from bench.records.outcome import Failed, Oom, Reported, Result
from bench.report.render import html
from bench.report.tables import sections
from bench.report.tables.table import Facts, Lines, Table
from bench.store.run_folder import Store

HOSTILE = [
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "</style><style>*{}</style>",
    "</title><img src=x>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "-->",
    "a | b `c` & d &lt;e&gt;",
]


class Parsed(HTMLParser):
    """The elements of a page with their attributes, and the text outside of style and script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(text.replace("<wbr>", ""))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag != "meta":
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] not in ("style", "script"):
            self.text.append(data)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def page(results: list[Result]) -> Parsed:
    return Parsed(html.render(sections.Report(results=results).sections))


def test_every_section_has_its_heading_and_a_link_to_it() -> None:
    said = sections.Report(results=mixed()).sections
    parsed = page(mixed())
    titles = [section.title for section in said if section.title]
    assert [text for text in titles if text not in parsed.text] == []
    anchors = [attributes["id"] for attributes in parsed.named("section") if "id" in attributes]
    assert [attributes["href"] for attributes in parsed.named("a")] == [f"#{anchor}" for anchor in anchors]
    assert len(set(anchors)) == len(anchors) == len(titles)
    assert {
        "All results",
        "Rows to doubt",
        "What actually ran",
        "Phases, mean ms",
        "Ranks",
        "How it was measured",
    } <= set(titles)


def test_the_page_begins_with_the_answer_and_the_charts_and_links_to_the_rest() -> None:
    report = sections.Report(results=mixed())
    page = html.render(report.sections, first=report.brief)
    places = [
        page.index(text) for text in ('class="first"', "For num_cams 1: train with ddp", "<figure", "<nav", "<dl>")
    ]
    assert places == sorted(places)
    assert len(re.findall(r' id="([^"]+)"', page)) == len(set(re.findall(r' id="([^"]+)"', page)))
    assert page.count("<figure") == html.render(report.sections).count("<figure")


def test_every_word_of_the_sections_is_on_the_page() -> None:
    shown = {text.strip() for text in page(mixed()).text}
    for section in sections.Report(results=mixed()).sections:
        match section:
            case Lines(lines=lines):
                words = [part.strip() for line in lines for part in line.split("`")]
            case Facts(facts=facts):
                words = [word for pair in facts for word in pair]
            case Table(headers=headers, rows=rows):
                words = [*headers, *(text for row in rows for text in row if text)]
            case _:
                words = list(section.series)
        assert set(words) <= shown


def test_headers_are_buttons_that_say_how_they_sort() -> None:
    parsed = page(mixed())
    headers = parsed.named("th")
    assert headers
    assert all(header["aria-sort"] == "none" and header["scope"] == "col" for header in headers)
    assert len([attributes for attributes in parsed.named("button") if "data-toggles" not in attributes]) == len(
        headers
    )


def test_the_peak_of_each_cell_is_strong() -> None:
    text = html.render(sections.Report(results=mixed()).sections)
    assert re.findall(r"<strong>(.+?)</strong>", text) == ["50.0", "40.0"]


def test_the_deepspeed_note_stands_under_every_phase_table_and_the_chart() -> None:
    text = html.render(sections.Report(results=[result(), result(backend="zero2")]).sections)
    assert text.count("Compare the total between backends") == 3 + 1


@pytest.mark.parametrize("words", HOSTILE)
def test_hostile_words_are_words_wherever_they_come_from(words: str) -> None:
    machine = MACHINE.model_copy(update={"cpu": words, "git_commit": words, "libraries": {words: words}})
    odd = result(ok(), axes={words: words}, machine=machine)
    odd = odd.model_copy(
        update={"attempt": odd.attempt.model_copy(update={"cell": cell(words, options={words: words})})}
    )
    parsed = page(
        [
            odd,
            result(Failed(rank=0, phase=words, reason=words), machine=machine),
            result(Oom(rank=0, phase="bwd", reason=words), batch=4, axes={words: words}),
            result(Reported(source=words, samples_per_s_global=1.0), batch=8, axes={words: 1}),
            # Enough cells for several panels, whose names stand in attributes.
            *(result(backend=name, axes={words: f"{words}{n}"}) for n in range(4) for name in ("ddp", "zero2")),
        ]
    )
    text = "".join(parsed.text)
    assert text.count(words) > 5
    assert len(parsed.named("script")) == len(parsed.named("style")) == len(parsed.named("title")) - _marks(parsed) == 1
    assert not parsed.named("img")
    assert not any(name.startswith("on") for _, attributes in parsed.elements for name in attributes)
    assert any(words in str(attributes.get("aria-label")) for attributes in parsed.named("svg"))


def _marks(parsed: Parsed) -> int:
    return len([1 for _, attributes in parsed.elements if "data-series" in attributes and "x1" not in attributes])


def test_results_stand_neither_in_the_script_nor_in_the_style() -> None:
    one, other = (html.render(sections.Report(results=results).sections) for results in (mixed(), [result()]))
    for tag in ("script", "style"):
        found = [re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL) for text in (one, other)]
        assert found[0] == found[1]
        assert len(found[0]) == 1


def test_only_the_pages_own_style_and_script_are_allowed() -> None:
    text = html.render(sections.Report(results=mixed()).sections)
    (policy,) = (
        attributes["content"]
        for attributes in Parsed(text).named("meta")
        if attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for tag in ("script", "style"):
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_nothing_is_loaded() -> None:
    text = html.render(sections.Report(results=mixed()).sections)
    parsed = Parsed(text)
    assert not {tag for tag, _ in parsed.elements} & {
        "link",
        "img",
        "iframe",
        "object",
        "embed",
        "image",
        "use",
        "base",
    }
    assert not any("src" in attributes or "style" in attributes for _, attributes in parsed.elements)
    assert all(str(attributes["href"]).startswith("#") for attributes in parsed.named("a"))
    assert not re.search(r"https?:|url\(|@import|fetch\(|XMLHttpRequest|import\(", text)


def test_the_page_is_small_and_the_same_every_time() -> None:
    text = html.render(sections.Report(results=mixed()).sections)
    assert text == html.render(sections.Report(results=mixed()).sections)
    assert len(text) < 100_000


def test_no_results() -> None:
    assert "No results." in page([]).text


# --- bench report ---------------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> Path:
    store = Store(tmp_path / "run")
    records = [result(batch=batch) for batch in (2, 4)]
    with store.open(MACHINE, [records[0].attempt.cell], MATRIX_YAML):
        for record in records:
            store.begin(record.attempt)
            store.finish(record)
    return store.root


def test_the_page_goes_into_the_run_unless_told_otherwise(run: Path, tmp_path: Path) -> None:
    assert full_report(run, "--format", "html") == f"report: {run / 'report.html'}\n"
    other = run / "other.html"
    assert full_report(run, "--format", "html", "--output", other) == f"report: {other}\n"
    assert other.read_bytes() == (run / "report.html").read_bytes()
    assert "<svg" in other.read_text()


def test_markdown_in_a_file_has_its_plots_beside_it(run: Path, tmp_path: Path) -> None:
    printed = full_report(run, "--format", "md")
    assert printed == full_report(run)
    full_report(run, "--output", tmp_path / "pr.md")
    text = (tmp_path / "pr.md").read_text()
    links = re.findall(r"!\[.+?\]\((.+?)\)", text)
    assert links == ["plots/ratios.svg", "plots/throughput.svg", "plots/memory.svg", "plots/phases.svg"]
    assert all((tmp_path / link).read_text().startswith("<svg ") for link in links)
    without_plots = re.sub(r"## [^\n]+\n\n!\[[^\n]+\n\n?", "", text)
    assert without_plots == printed


def test_github_gets_the_tables_on_the_page_of_the_job(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    printed = full_report(run, "--format", "md")
    full_report(run, "--format", "html")
    assert summary.read_text() == "before\n" + printed * 2


def test_a_page_of_the_job_that_is_full_says_where_the_rest_is(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    summary.write_text("é" * (512 * 1024 - 1000))  # of two bytes each
    printed = full_report(run, "--format", "md")
    assert 1024 * 1024 - 500 < len(summary.read_bytes()) <= 1024 * 1024
    kept, _, note = summary.read_text().strip("é\n").rpartition("\n\n")
    assert printed.startswith(f"{kept}\n")
    assert note.startswith("**The report is cut here: a step summary holds 1 MiB.")
    assert str(run / "report-full.md") in note.replace("\\", "")
    full = summary.read_bytes().ljust(1024 * 1024)
    summary.write_bytes(full)
    full_report(run, "--format", "md")
    assert summary.read_bytes() == full


def test_an_output_that_cannot_be_written_is_one_message(run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for kind in ("md", "html", "csv", "json", "parquet"):
        for output in (tmp_path, tmp_path / "file" / f"a.{kind}"):
            done = CliRunner().invoke(app, ["report", str(run), "--format", kind, "--output", str(output)])
            assert done.exit_code == 2
            assert done.stderr.startswith(f"bench: {output}: cannot write there: ")
            assert len(done.stderr.splitlines()) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "run"]


def test_a_folder_that_is_missing_is_made(run: Path, tmp_path: Path) -> None:
    for kind in ("md", "html", "csv", "json", "parquet"):
        file = tmp_path / kind / "deep" / f"a.{kind}"
        full_report(run, "--format", kind, "--output", file)
        by_ending = tmp_path / kind / "beside" / f"b.{kind}"
        full_report(run, "--output", by_ending)
        assert by_ending.read_bytes() == file.read_bytes()
        assert [path for path in file.parent.iterdir() if path.name != "plots"] == [file]


def test_a_stream_is_written_to_and_stays_what_it_is(run: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for kind in ("md", "csv"):
        with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE, text=True) as reader:
            assert full_report(run, "--format", kind, "--output", pipe) == ""
            assert reader.communicate(timeout=30)[0] == full_report(run, "--format", kind)
    assert pipe.is_fifo()
    assert not (tmp_path / "plots").exists()


def test_a_page_of_24_results_with_its_details_stays_below_250_kb() -> None:
    steps = (0.4,) * 50
    names = [(backend, cameras, on) for backend in ("ddp", "fsdp", "zero2") for cameras in (1, 4) for on in (0, 1)]
    results = [
        result(ok(steps, steps, backend=name), backend=name, batch=batch, axes={"num_cams": cameras, "grad_ckpt": on})
        for name, cameras, on in names
        for batch in (8, 16)
    ]
    report = sections.Report(results=results)
    page = html.render(report.page, first=report.brief, details=report.details)
    assert len(report.details) == len(names)
    assert len(page.encode()) <= 250_000
    identities = re.findall(r' id="([^"]+)"', page)
    assert len(identities) == len(set(identities))
    assert set(re.findall(r'href="#([^"]+)"', page)) <= set(identities)


def test_settings_whose_names_differ_in_signs_or_letters_alone_have_anchors_of_their_own() -> None:
    windows = [-1, 1, "模型", "数据"]
    report = sections.Report(results=[result(axes={"window": window}) for window in windows])
    text = html.render(report.sections, first=report.brief, details=report.details)
    anchors = re.findall(r'<details id="([^"]*)"', text)
    assert len(set(anchors)) == len(anchors) == len(windows)
    assert [f'href="#{anchor}"' in text for anchor in anchors] == [True] * len(windows)


def test_a_page_elsewhere_links_to_the_files_of_its_run(tmp_path: Path) -> None:
    stored(tmp_path / "run", [one := result()])
    bench("report", tmp_path / "run", "--output", tmp_path / "pages" / "one.html")
    (file,) = re.findall(r'href="([^"]+result.json)"', (tmp_path / "pages" / "one.html").read_text())
    assert file == f"../run/attempts/{one.attempt.slug}/result.json"
    assert (tmp_path / "pages" / file).exists()
