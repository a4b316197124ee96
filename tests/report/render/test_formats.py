"""The table of export formats."""

import json

import pytest
from examples import mixed

from bench.report.render.formats import FORMATS, FULL, by_ending, chart_files
from bench.report.tables.sections import Report


def test_every_format_is_found_by_its_endings() -> None:
    for name, form in FORMATS.items():
        assert form.name == name
        assert all(by_ending(ending.upper()) is form for ending in form.endings)
    assert by_ending(".txt") is None
    assert by_ending("") is None


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_renders_a_report(name: str) -> None:
    if name in ("png", "pdf"):
        pytest.importorskip("vl_convert")
    form = FORMATS[name]
    content = form.render(Report(results=mixed()), None)
    assert isinstance(content, bytes) is form.binary
    assert content


def test_markdown_links_to_the_chart_files() -> None:
    report = Report(results=mixed())
    linked, alone = (FULL.render(report, folder) for folder in ("plots", None))
    assert isinstance(linked, str)
    assert isinstance(alone, str)
    names = chart_files(report)
    assert names
    assert all(f"(plots/{name})" in linked and name not in alone for name in names)


def test_json_holds_a_record_for_each_result() -> None:
    content = FORMATS["json"].render(Report(results=mixed()), None)
    assert len(json.loads(content)) == len(mixed())
