"""One HTML file that loads nothing. What a report says is in `sections`; here is only markup.

The Content-Security-Policy allows only the page's own style and script, by their hashes: code in a name, an error or a
log does not run. Results are only in text and attributes, never in the script.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from importlib.resources import files

from bench.report.render.plots import drawing, escape, swatch
from bench.report.tables.details import Details
from bench.report.tables.figure import Chart, LineChart, RatioChart
from bench.report.tables.sections import TITLE, Section
from bench.report.tables.show import Verbatim
from bench.report.tables.table import Facts, Lines, Table

SETTINGS = "Settings, the fastest first"
"""Names the table of the short report, which has no title, for screen readers."""
DETAILS = "Each setting"
MOST_COLUMNS = 40
"""Of a table whose numbers are aligned."""
FIRST = "first-"
"""Begins the anchors of the short report: the full one has sections of the same names."""


def render(
    sections: Sequence[Section], title: str = TITLE, first: Sequence[Section] = (), details: Sequence[Details] = ()
) -> str:
    """The page. It consists of sections and the files in bench/report/render/page.

    Args:
        first: the short report. It is the first screen, with the charts of the settings before its table and the charts
            over batches below it; links to ``sections`` follow.
        details: what each row of the table of settings opens.
    """
    ahead = [section for section in sections if isinstance(section, LineChart | RatioChart)] if first else []
    of_settings = [chart for chart in ahead if chart.name in ("ratios", "tradeoff")]
    table = next((number for number, part in enumerate(first) if isinstance(part, Table)), len(first))
    style, script = _asset("chart.css") + _asset("page.css") + _aligned(), _asset("page.js")
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; base-uri 'none';"
        " form-action 'none'"
    )
    named = [(_anchor(section.title), section.title) for section in sections if section.title]
    lines = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{escape(title)}</title>",
        f"<style>{style}</style>",
        "</head>",
        '<body class="chart">',
        f"<header><h1>{escape(title)}</h1></header>",
        "<main>",
        *(
            [
                '<div class="first">',
                *(line for part in first[:table] for line in _section(part, FIRST, details)),
                *_links(first[table:]),
                *(line for chart in of_settings for line in _section(chart)),
                *(line for part in first[table:] for line in _section(part, FIRST, details)),
                "</div>",
            ]
            if first
            else []
        ),
        *(line for section in ahead if section not in of_settings for line in _section(section)),
        *(_all_details(details) if details else []),
        '<nav aria-label="Sections">',
        *(f'<a href="#{anchor}">{escape(name)}</a>' for anchor, name in named),
        "</nav>",
        *(line for section in sections if section not in ahead for line in _section(section)),
        "</main>",
        '<div id="tip" role="status" hidden></div>',
        f"<script>{script}</script>",
        "</body>",
        "</html>",
    ]
    return "\n".join(lines) + "\n"


def _links(parts: Sequence[Section]) -> Iterator[str]:
    """What the first screen has no room for."""
    if titles := [part.title for part in parts if part.title]:
        links = (f'<a href="#{FIRST}{_anchor(title)}">{escape(title)}</a>' for title in titles)
        yield f'<p class="note">{" · ".join(links)}</p>'


def _section(section: Section, prefix: str = "", details: Sequence[Details] = ()) -> Iterator[str]:
    """A section under its heading.

    Args:
        prefix: of its anchor.
        details: what each row of a table without a title links to.
    """
    kind = "figure" if isinstance(section, Chart) else type(section).__name__.lower()
    narrow = isinstance(section, RatioChart) or (isinstance(section, LineChart) and len(section.panels) == 1)
    wide = " wide" if isinstance(section, Chart) and not narrow else ""
    identity = f' id="{prefix}{_anchor(section.title)}"' if section.title else ""
    yield f'<section class="{kind}{wide}"{identity}>'
    if section.title:
        yield f"<h2>{escape(section.title)}</h2>"
    match section:
        case Lines(lines=(alone,)):
            yield f"<p>{words(alone)}</p>"
        case Lines():
            tag = "ol" if section.numbered else "ul"
            yield from (f"<{tag}>", *(f"<li>{words(line)}</li>" for line in section.lines), f"</{tag}>")
        case Facts():
            yield from (f'<p class="note">{words(note)}</p>' for note in section.notes)
            yield "<dl>"
            yield from (f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in section.facts)
            yield "</dl>"
        case Table():
            yield from _table(section, () if section.title else details)
        case _:
            yield from _chart(section)
    yield "</section>"


def _all_details(details: Sequence[Details]) -> Iterator[str]:
    yield f'<section class="details"><h2>{DETAILS}</h2>'
    yield from (
        line for each, anchor in zip(details, _anchors(details), strict=True) for line in _details(each, anchor)
    )
    yield "</section>"


def _details(details: Details, anchor: str) -> Iterator[str]:
    yield f'<details id="{anchor}"><summary>{escape(details.name)}</summary>'
    for part in details.parts:
        yield f"<h3>{escape(part.title)}</h3>"
        if isinstance(part, Verbatim):
            yield f"<pre>{escape(part.text)}</pre>"
        else:
            yield from _table(part, label=f"{part.title}: {details.name}", sortable=False)
    for folder in details.folders:
        file, by_hand = f"{folder}/result.json", f" <code>sh {escape(folder)}/command.sh</code>" * details.scripts
        yield f'<p class="note"><a href="{escape(file)}">{escape(file)}</a>{by_hand}</p>'
    yield "</details>"


def _table(
    table: Table, details: Sequence[Details] = (), label: str | None = None, *, sortable: bool = True
) -> Iterator[str]:
    label = label or table.title or SETTINGS
    yield f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}"><table>'
    yield "<thead><tr>"
    for header in table.headers:
        number = ' class="number"' if header in table.numeric else ""
        name = escape(header).replace("_", "_<wbr>")
        if sortable:
            yield f'<th scope="col" aria-sort="none"{number}><button type="button">{name}</button></th>'
        else:
            yield f"<th{number}>{name}</th>"
    yield "</tr></thead>"
    yield "<tbody>"
    anchors = _anchors(details)
    for index, row in enumerate(table.rows):
        cells = [_cell(table, index, header, text) for header, text in zip(table.headers, row, strict=True)]
        axes = ""
        if details:
            axes = f' data-axes="{escape(json.dumps(details[index].axes))}"'
            cells[0] = f'<td><a href="#{anchors[index]}">{escape(row[0])}</a></td>'
        yield f"<tr{axes}>{''.join(cells)}</tr>"
    yield "</tbody>"
    yield "</table></div>"
    yield from (f'<p class="note">{words(note)}</p>' for note in table.notes)


def words(text: str) -> str:
    """``text`` as HTML; what stands between backticks is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _cell(table: Table, index: int, header: str, text: str) -> str:
    shown = escape(text)
    if text and (index, header) in table.bold:
        shown = f"<strong>{shown}</strong>"
    if tone := table.tones.get((index, header)):
        shown = f'<span class="tone {tone}">{shown}</span>'
    return f'<td class="prose">{shown}</td>' if header in table.prose else f"<td>{shown}</td>"


def _aligned() -> str:
    """Aligns the cells below each header of numbers. A class on every cell would be a fifth of the page."""
    columns = (f"table:has(th:nth-child({n}).number) td:nth-child({n})" for n in range(1, MOST_COLUMNS + 1))
    return f"{','.join(columns)} {{ text-align: right; }}\n"


def _chart(chart: Chart) -> Iterator[str]:
    yield f'<figure data-chart="{escape(chart.name)}">'
    yield '<div class="legend" role="group" aria-label="Show or hide">'
    for number, name in enumerate(chart.series):
        mark = f'<svg width="12" height="12" viewBox="-6 -6 12 12" aria-hidden="true">{swatch(number)}</svg>'
        yield f'<button type="button" aria-pressed="true" data-toggles="{number}">{mark}{escape(name)}</button>'
    yield "</div>"
    yield '<div class="panels">'
    drawings = [drawing(chart, panel) for panel in chart.panels] if isinstance(chart, LineChart) else [drawing(chart)]
    yield from (f'<div class="drawing" tabindex="0">{one}</div>' for one in drawings)
    yield "</div>"
    yield "<figcaption>"
    yield f'<p class="note">{escape(" ".join(chart.notes))}</p>'
    yield "</figcaption></figure>"


def _anchor(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def _anchors(details: Sequence[Details]) -> list[str]:
    """Of each; an anchor drops signs and other scripts, so two names may share one."""
    anchors = [_anchor(each.name) or "setting" for each in details]
    counts = [anchors[:index].count(anchor) for index, anchor in enumerate(anchors)]
    return [f"{anchor}--{count + 1}" if count else anchor for anchor, count in zip(anchors, counts, strict=True)]


def _asset(name: str) -> str:
    return files("bench.report.render").joinpath("page", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
