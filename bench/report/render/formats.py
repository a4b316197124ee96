"""The formats that a report can be exported to, by name."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.errors import InputError
from bench.report.render import frame, html, image, markdown, plots
from bench.report.tables.figure import Chart
from bench.report.tables.sections import Report


@dataclass(frozen=True, kw_only=True)
class Format:
    """One export format."""

    name: str
    endings: tuple[str, ...]
    """File name endings, with the dot."""
    render: Callable[[Report, str | None], str | bytes]
    """The content of the file. The second argument is the folder of the charts, as the content is to link to them;
    None leaves out linked charts. Only formats with ``links_charts`` use it."""
    binary: bool = False
    """Whether the content is bytes, which no terminal can show."""
    links_charts: bool = False
    """Whether the content links to the files of `chart_files` instead of holding its charts."""


FORMATS: dict[str, Format] = {
    each.name: each
    for each in (
        Format(name="md", endings=(".md", ".markdown"), render=lambda report, _: markdown.document(report.brief)),
        Format(
            name="html",
            endings=(".html", ".htm"),
            render=lambda report, _: html.render(report.page, first=report.brief, details=report.details),
        ),
        Format(name="csv", endings=(".csv",), render=lambda report, _: frame.text(report.records, "csv")),
        Format(name="json", endings=(".json",), render=lambda report, _: frame.text(report.records, "json")),
        Format(
            name="parquet",
            endings=(".parquet",),
            render=lambda report, _: frame.parquet(report.records),
            binary=True,
        ),
        Format(name="svg", endings=(".svg",), render=lambda report, _: plots.svg(*drawn(report))),
        Format(name="png", endings=(".png",), render=lambda report, _: image.png(drawn(report)), binary=True),
        Format(name="pdf", endings=(".pdf",), render=lambda report, _: image.pdf(drawn(report)), binary=True),
    )
}


FULL = Format(
    name="md", endings=(), render=lambda report, plots: markdown.render(report.sections, plots), links_charts=True
)
"""Markdown with all sections: ``--full``."""


def by_ending(ending: str) -> Format | None:
    """The format of files with this ending, such as ``.html``, in any case; None for an unknown one."""
    return next((each for each in FORMATS.values() if ending.lower() in each.endings), None)


def drawn(report: Report) -> Sequence[Chart]:
    """The charts of a report that is to be an image.

    Raises:
        InputError: it has none.
    """
    charts = [section for section in report.sections if isinstance(section, Chart)]
    if not charts:
        raise InputError(
            "there is nothing to draw: no attempt was measured", field="--output", fix="--output report.md"
        )
    return charts


def chart_files(report: Report) -> dict[str, str]:
    """SVG files to write into the folder of charts, by their names."""
    return {f"{section.name}.svg": plots.svg(section) for section in report.sections if isinstance(section, Chart)}
