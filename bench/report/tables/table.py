"""What a report is made of, as plain text without markup: tables, sentences, facts. The renderers mark it up."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from bench.records.outcome import Tone
from bench.units import UNKNOWN

Item = TypeVar("Item")
Outer = TypeVar("Outer")


@dataclass(frozen=True, kw_only=True)
class Table:
    """Plain text in rows and columns."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[str] = frozenset()
    """Headers of the columns to align at the right."""
    prose: frozenset[str] = frozenset()
    """Headers of the columns that hold sentences. A terminal prints them below the table."""
    bold: frozenset[tuple[int, str]] = frozenset()
    """Row number and header of the cells in bold."""
    tones: Mapping[tuple[int, str], Tone] = field(default_factory=dict)
    """By row number and header: what the color of a cell stands for."""
    row_names: tuple[str, ...] = ()
    """A name for each row, for where its prose is printed outside the table. Only tables with prose have names."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Sentences, one a line."""

    title: str
    lines: tuple[str, ...]
    numbered: bool = False
    tone: Tone | None = None
    """What the color of the lines stands for."""

    def first(self, most: int) -> "Lines":
        """The first lines, and how many follow in the full report."""
        left = len(self.lines) - most
        more = f"{left + 1} more: `bench report --full`."
        return replace(self, lines=(*self.lines[: most - 1], more)) if left > 0 else self


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Names and their values. Without a title, they are the head of the report."""

    title: str
    facts: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Column(Generic[Item]):
    """One column of a table: its header, its values and how to show them."""

    header: str
    value: Callable[[Item], str]
    numeric: bool = False
    prose: bool = False
    bold: Callable[[Item], bool] | None = None
    """Whether an item's cell is bold."""
    tone: Callable[[Item], Tone | None] | None = None
    """What the color of a cell stands for."""


@dataclass(frozen=True)
class Number(Column[Item]):
    """A column of numbers, which are aligned at the right."""

    numeric: bool = True


def table_of(
    title: str,
    items: Iterable[Item],
    columns: Sequence[Column[Item]],
    *,
    notes: Iterable[str] = (),
    name: Callable[[Item], str] | None = None,
) -> Table:
    """One row for each of ``items``, one column for each of ``columns``.

    Args:
        name: names a row where its prose is printed outside the table.
    """
    listed = tuple(items)
    return Table(
        title=title,
        headers=tuple(column.header for column in columns),
        rows=tuple(tuple(column.value(item) for column in columns) for item in listed),
        numeric=frozenset(column.header for column in columns if column.numeric),
        prose=frozenset(column.header for column in columns if column.prose),
        bold=frozenset(
            (index, column.header)
            for column in columns
            if column.bold
            for index, item in enumerate(listed)
            if column.bold(item)
        ),
        tones={
            (index, column.header): tone
            for column in columns
            if column.tone
            for index, item in enumerate(listed)
            if (tone := column.tone(item))
        },
        row_names=tuple(map(name, listed)) if name else (),
        notes=tuple(notes),
    )


def of_part(part: Callable[[Outer], Item], columns: Iterable[Column[Item]]) -> list[Column[Outer]]:
    """``columns`` of a ``part``, made into columns of the whole item."""

    def of_whole(column: Column[Item]) -> Column[Outer]:
        value, bold, tone = column.value, column.bold, column.tone
        return Column(
            column.header,
            lambda item: value(part(item)),
            numeric=column.numeric,
            prose=column.prose,
            bold=(lambda item: bold(part(item))) if bold else None,
            tone=(lambda item: tone(part(item))) if tone else None,
        )

    return list(map(of_whole, columns))


def without_unknown(table: Table) -> Table:
    """``table`` without the columns of which no row knows a value."""
    known = [n for n in range(len(table.headers)) if any(row[n] not in ("", UNKNOWN) for row in table.rows)]
    rows = tuple(tuple(row[n] for n in known) for row in table.rows)
    return replace(table, headers=tuple(table.headers[n] for n in known), rows=rows)


def without_repeats(table: Table) -> Table:
    """``table`` with equal rows shown once. For tables without marked cells."""
    assert not table.bold
    assert not table.tones
    return replace(table, rows=tuple(dict.fromkeys(table.rows)))
