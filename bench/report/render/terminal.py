"""Sections as rich renderables, and the short report cut to one screen."""

import sys
from collections.abc import Sequence
from itertools import product

from rich.console import Console, JustifyMethod, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from bench.errors import one_line
from bench.report.tables.brief import MOST_SETTINGS
from bench.report.tables.sections import Report, Section
from bench.report.tables.table import Facts, Lines, Table

COLORS = {"good": "green", "warning": "yellow", "bad": "red", "neutral": "dim"}
"""Of a table cell or a line, by its tone."""

SCREEN_LINES = 24
BELOW = 2
"""Lines of a screen that stay for where the results are, and for the prompt."""
FEW_ROWS = (6, 3)
SHORT = 18
"""Characters of a cell that stays on one line."""


def screen(report: Report, to: Console) -> list[RenderableType]:
    """The short report with as many settings as one screen has room for, then with fewer sentences. Without the
    intervals of the ratios, where rows would else take two lines."""
    room, parts = max(to.height, SCREEN_LINES) - BELOW, list[RenderableType]()
    most = min(len(report.settings), MOST_SETTINGS)
    widths = to.options.update(width=sys.maxsize)
    tables = [part for part in render(report.cut(most)) if isinstance(part, RichTable)]
    intervals = all(to.measure(table, options=widths).maximum <= to.width for table in tables)
    for fewest, lines in product(FEW_ROWS, (8, 4, 3, 2)):
        for rows in range(most, min(fewest, most) - 1, -1):
            parts = render(report.cut(rows, lines, intervals=intervals))
            if sum(len(to.render_lines(part)) for part in parts) <= room:
                return parts
    return parts


def render(sections: Sequence[Section]) -> list[RenderableType]:
    """``sections`` one below the other. Charts are left out."""
    return [part for section in sections for part in (*_section(section), "")][:-1]


def _section(section: Section) -> list[RenderableType]:
    match section:
        case Table():
            return mark_up(section)
        case Lines():
            style = COLORS[section.tone] if section.tone else ""
            lines = [Text(f"- {one_line(line)}", style) for line in section.lines]
            return [Text(section.title, style="bold"), *lines]
        case Facts():
            facts = [Text(one_line(f"{name}: {value}")) for name, value in section.facts]
            return [*([Text(section.title, style="bold")] if section.title else []), *facts]
    return []


def mark_up(table: Table) -> list[RenderableType]:
    """A table with its title and notes. Its prose follows below, a line for each row that has any.

    A column of prose would be only a few letters wide.
    """
    title = Text(table.title, style="bold") if table.title else None
    # No lines and one blank between columns: a matrix of four axes needs the rest of 100 columns.
    marked = RichTable(title=title, title_justify="left", title_style="", box=None, padding=(0, 1, 0, 0))
    shown = [number for number, header in enumerate(table.headers) if header not in table.prose]
    for number in shown:
        header = table.headers[number]
        # One word a line, so that a column is no wider than necessary.
        heading = Text("\n".join(header.replace("_", " ").split()), style="underline")
        justify: JustifyMethod = "right" if header in table.numeric else "left"
        texts = [row[number] for row in table.rows]
        marked.add_column(
            heading,
            justify=justify,
            overflow="fold",  # a word that is longer than that
            no_wrap=all(len(text) <= SHORT for text in texts),
            min_width=max((len(word) for text in texts for word in text.split() if len(word) <= SHORT), default=None),
        )
    for index, row in enumerate(table.rows):
        marked.add_row(*(_cell(table, index, table.headers[number], row[number]) for number in shown))
    return [marked, *(Text(note, style="dim") for note in table.notes), *_prose(table)]


def _prose(table: Table) -> list[Text]:
    lines = []
    for index, (name, row) in enumerate(zip(table.row_names, table.rows, strict=False)):
        texts = [text for header, text in zip(table.headers, row, strict=True) if header in table.prose and text]
        # A colored word says what kind of row it is.
        words = [
            (f"{text} ", COLORS[tone])
            for header, text in zip(table.headers, row, strict=True)
            if (tone := table.tones.get((index, header)))
        ]
        if texts:
            lines.append(Text.assemble(*words, one_line(": ".join(filter(None, (name, *texts))))))
    return lines


def _cell(table: Table, index: int, header: str, text: str) -> Text:
    text = one_line(text)  # a terminal obeys control characters
    if (index, header) in table.bold:
        return Text(text, style="bold")
    tone = table.tones.get((index, header))
    return Text(text, style=COLORS[tone] if tone else "")
