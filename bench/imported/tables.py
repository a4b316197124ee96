"""The tables in a text: csv, tsv, Markdown and HTML, as lines of cells with the place of each. Pure."""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser

from bench.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Grid:
    """One table: a line of column names, and lines with as many cells."""

    columns: tuple[str, ...]
    place: str
    """Of the column names."""
    lines: tuple[tuple[str, tuple[str, ...]], ...]
    """The place and the cells of each line that is not empty."""
    decimal_comma: bool = False
    """Whether a semicolon stands between its cells, as where numbers have a decimal comma."""


def separated(text: str, where: str, skipped: int) -> Grid:
    """The table of a csv or tsv file whose first ``skipped`` lines are comments.

    Raises:
        InputError: it is no such table or empty, or a line has too many or too few values.
    """
    lines = io.StringIO(text, newline="").readlines()[skipped:]
    head = lines[0] if lines else ""
    delimiter = max(",;\t", key=head.count)  # a comma where none occurs
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    columns, begun, place = None, skipped, where
    found: list[tuple[str, tuple[str, ...]]] = []
    try:
        for cells in reader:
            here = f"{where}:{begun + 1}"
            begun = skipped + reader.line_num
            if not any(cell.strip() for cell in cells):
                continue
            if columns is None:
                columns, place = tuple(cell.strip() for cell in cells), here
                continue
            if len(cells) != len(columns):
                raise InputError(
                    f"has {len(cells)} values, but there are {len(columns)} columns",
                    where=here,
                    fix="leave an unknown value empty; quote a value that contains a comma",
                )
            found.append((here, tuple(cell.strip() for cell in cells)))
    except csv.Error as error:
        raise InputError(f"is not CSV: {error}", where=f"{where}:{begun + 1}") from error
    if columns is None:
        raise InputError("is empty", where=where)
    return Grid(columns=columns, place=place, lines=tuple(found), decimal_comma=delimiter == ";")


_RULE = re.compile(r"\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?")


def markdown(text: str, where: str) -> list[Grid]:
    """Every pipe table of a Markdown text. A line that is too short has empty cells, as Markdown shows it."""
    lines, grids = text.splitlines(), []
    for index in range(1, len(lines)):
        columns = _piped(lines[index - 1])
        if "|" not in lines[index - 1] or not _RULE.fullmatch(lines[index].strip()):
            continue
        if len(_piped(lines[index])) != len(columns):
            continue
        found = []
        for number, line in enumerate(lines[index + 1 :], start=index + 2):
            if "|" not in line:
                break
            cells = (_piped(line) + [""] * len(columns))[: len(columns)]
            if any(cells):
                found.append((f"{where}:{number}", tuple(cells)))
        grids.append(Grid(columns=tuple(columns), place=f"{where}:{index}", lines=tuple(found)))
    return grids


def _piped(line: str) -> list[str]:
    cells = re.split(r"(?<!\\)\|", line.strip())
    cells = cells[not cells[0].strip() :]
    return [_plain(cell) for cell in (cells[:-1] if cells and not cells[-1].strip() else cells)]


def _plain(cell: str) -> str:
    """The text of a cell of Markdown, without bold, links, footnotes and line breaks."""
    cell = re.sub(r"<br\s*/?>", " ", cell.replace("\\|", "|"), flags=re.IGNORECASE)
    cell = re.sub(r"\[\^[^\]]*\]|</?\w+[^>]*>", "", cell)
    cell = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", cell)
    cell = re.sub(r"(\*\*|__|~~|`)(.+?)\1", r"\2", cell)
    cell = re.sub(r"^\*(.+)\*$", r"\1", cell.strip())
    return " ".join(cell.split())


def html(text: str, where: str) -> list[Grid]:
    """Every table of an HTML text that is not inside another one. Its first row has the column names."""
    reader = _Html(where)
    reader.feed(text)
    reader.close()
    return [grid for rows in reader.tables if (grid := _spanned(rows))]


_Cell = tuple[str, int, int]
"""A cell's text, and how many columns and rows it spans."""
_Row = tuple[str, list[_Cell]]


class _Html(HTMLParser):
    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where
        self.tables: list[list[_Row]] = []
        self._depth = 0
        self._text: list[str] | None = None
        self._span = (1, 1)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._depth += tag == "table"
        if self._depth != 1:
            return
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self._end_cell()
            self.tables[-1].append((f"{self.where}:{self.getpos()[0]}", []))
        elif tag in ("td", "th"):
            self._end_cell()
            given = {name: int(value) for name, value in attrs if value and re.fullmatch(r"[1-9]\d{0,2}", value)}
            self._span, self._text = (given.get("colspan", 1), given.get("rowspan", 1)), []
        elif tag == "br":
            self.handle_data(" ")

    def handle_endtag(self, tag: str) -> None:
        if self._depth == 1 and tag in ("td", "th", "tr", "table"):
            self._end_cell()
        self._depth -= tag == "table" and self._depth > 0

    def handle_data(self, data: str) -> None:
        if self._text is not None:
            self._text.append(data)

    def _end_cell(self) -> None:
        if self._text is not None and self.tables and self.tables[-1]:
            self.tables[-1][-1][1].append((" ".join("".join(self._text).split()), *self._span))
        self._text = None


def _spanned(rows: Sequence[_Row]) -> Grid | None:
    """The rows as a grid: a cell that spans several has the same text in each."""
    below: dict[int, tuple[str, int]] = {}
    lines: list[tuple[str, list[str]]] = []
    for place, cells in rows:
        line: list[str] = []
        waiting: Iterator[_Cell] = iter(cells)
        while True:
            if len(line) in below:
                text, left = below.pop(len(line))
                if left > 1:
                    below[len(line)] = (text, left - 1)
                line.append(text)
                continue
            cell = next(waiting, None)
            if cell is None:
                break
            text, columns, down = cell
            for _ in range(columns):
                if down > 1:
                    below[len(line)] = (text, down - 1)
                line.append(text)
        lines.append((place, line))
    lines = [(place, line) for place, line in lines if any(line)]
    if not lines:
        return None
    width = len(lines[0][1])
    found = tuple((place, tuple((line + [""] * width)[:width])) for place, line in lines[1:])
    return Grid(columns=tuple(lines[0][1]), place=lines[0][0], lines=found)
