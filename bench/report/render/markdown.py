"""Markdown. What a report says is in `sections`; here is only markup."""

import itertools
import re
from collections.abc import Sequence
from functools import lru_cache

from bench.errors import one_line
from bench.report.tables.sections import TITLE, Section
from bench.report.tables.table import Facts, Lines, Table


def render(sections: Sequence[Section], plots: str | None = None) -> str:
    """The report of ``sections``. It reads well as plain text: columns are aligned in the source.

    Args:
        plots: the folder of the charts' SVG files, as the report links to them; None leaves charts out.
    """
    return "\n".join([f"# {TITLE}", "", *(line for each in sections for line in section(each, plots))])


def document(sections: Sequence[Section]) -> str:
    """``sections`` without the title of a report, and without charts."""
    return "\n".join(line for each in sections for line in section(each))


def cut(text: str, room: int, note: str) -> str:
    """``text`` if it fits into ``room`` bytes; otherwise its first lines and ``note``; empty if not even these fit."""
    if len(data := text.encode()) <= room:
        return text
    end = f"\n\n**{escape(note)}**\n"
    kept = room - len(end.encode())
    return data[:kept].rpartition(b"\n")[0].decode() + end if kept >= 0 else ""


def section(section: Section, plots: str | None = None) -> list[str]:
    """A section under its heading."""
    heading = [f"## {escape(section.title)}", ""] if section.title else []
    match section:
        case Lines(lines=(alone,)):
            return [*heading, words(alone), ""]
        case Lines():
            marks = (f"{number}." if section.numbered else "-" for number in itertools.count(1))
            return [*heading, *(f"{mark} {words(line)}" for mark, line in zip(marks, section.lines, strict=False)), ""]
        case Facts():
            notes = [line for note in section.notes for line in (words(note), "")]
            facts = [f"- **{escape(name)}:** {escape(value)}" for name, value in section.facts]
            return [*heading, *notes, *facts, ""]
        case Table():
            notes = [line for note in section.notes for line in (words(note), "")]
            return [*heading, *_table(section), "", *notes]
    if plots is None:
        return []
    return [*heading, f"![{escape(section.title)}]({plots}/{section.name}.svg)", ""]


_MARKUP = re.compile(r"[\\`|~]|(?<! )\*|\*(?! )|(?<=\])\(|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
"""Characters that cannot be markup stay as they are, so that the source reads well: snake_case, a * b, [0]."""


_CODE = re.compile(r"(`[^`]+`)")


def words(text: str) -> str:
    """``text`` as markdown that shows it literally, but for what stands between backticks: that is code."""
    parts = _CODE.split(one_line(text))
    is_code = (index % 2 == 1 and not {"|", "\\"} & set(part) for index, part in enumerate(parts))
    return "".join(part if code else _literal(part) for part, code in zip(parts, is_code, strict=True))


@lru_cache(maxsize=4096)  # the cells of a long table repeat the same few words
def escape(text: str) -> str:
    """``text`` as markdown that shows it literally, also inside a table; without control characters."""
    return _literal(one_line(text))


def _literal(line: str) -> str:
    entities = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKUP.sub(r"\\\g<0>", entities)


def _table(table: Table) -> list[str]:
    texts = [[escape(header) for header in table.headers]]
    for index, row in enumerate(table.rows):
        texts.append([_cell(table, index, *pair) for pair in zip(table.headers, row, strict=True)])
    right = [header in table.numeric for header in table.headers]
    widths = [max(3, *(len(row[column]) for row in texts)) for column in range(len(right))]
    # The last column is often prose: padding it to its longest line would only add blanks.
    widths[-1] = len(texts[0][-1])
    rule = ["-" * (width - 1) + ":" if end else "-" * width for width, end in zip(widths, right, strict=True)]
    padded = [
        [text.rjust(width) if end else text.ljust(width) for text, width, end in zip(row, widths, right, strict=True)]
        for row in texts
    ]
    return [f"| {' | '.join(row)} |" for row in (padded[0], rule, *padded[1:])]


def _cell(table: Table, index: int, header: str, text: str) -> str:
    return f"**{escape(text)}**" if text and (index, header) in table.bold else escape(text)
