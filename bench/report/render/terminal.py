"""The main tables as rich renderables, for a terminal of 100 columns."""

from collections.abc import Sequence
from itertools import takewhile

from rich.console import RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from bench.records.outcome import Result
from bench.records.verdict import Probe
from bench.report import claims
from bench.report.doubts import flags
from bench.report.tables.attempts import REASON, REASON_LIMIT, Table, matrix, one_line, phases, row_name
from bench.report.tables.missing import not_measured
from bench.report.tables.searches import verdicts
from bench.report.tables.sections import DOUBTS, NOT_COMPARED, Choices, Lines, Report, _empty, answer

COLORS = {
    "ok": "green",
    "oom": "yellow",
    "thrashing": "yellow",
    "skipped": "bright_black",
    "hang": "red",
    "failed": "red",
}
"""Color of an outcome."""


def tables(
    results: Sequence[Result], probes: Sequence[Probe] = (), choices: Choices | None = None
) -> list[RenderableType]:
    """See `report`."""
    return report(Report(results=results, probes=probes, choices=choices or Choices()))


def report(shown: Report) -> list[RenderableType]:
    """The answer and what was not measured; then the raw matrix, why rows are missing from it, phases, doubts."""
    results, probes, choices = shown.results, shown.probes, shown.choices
    absent = not_measured(shown.missing, shown.unreadable)
    not_reached = [*mark_up(absent), ""] if absent.rows else []
    if not results:
        return not_reached
    summary = shown.summary
    reasons = [
        Text.assemble(
            (row.outcome, COLORS[row.outcome]), f" {row_name(summary, row)}: {one_line(row.reason, REASON_LIMIT)}"
        )
        for row in summary.rows
        if row.reason
    ]
    detailed = [table for table in (phases(summary, "mean"), phases(summary, "share")) if table.rows]
    doubts = [Text(f"doubtful: {one_line(doubt)}", style="yellow") for doubt in flags(summary)]
    return [
        *_answer(shown),
        *not_reached,
        *_without_reasons(matrix(summary)),
        *reasons,
        *(part for table in detailed for part in ("", *mark_up(table))),
        *([Text(f"\n{DOUBTS}", style="bold"), *doubts] if doubts else []),
        *(["", *mark_up(verdicts(probes, summary))] if probes else []),
        *(["", *mark_up(claims.table(claims.judge(summary, choices.claims)))] if choices.claims else []),
    ]


def _answer(report: Report) -> list[RenderableType]:
    shown: list[RenderableType] = []
    for section in answer(report):
        if _empty(section):
            continue
        if isinstance(section, Table):
            shown += [*mark_up(section), ""]
        elif isinstance(section, Lines):
            style = "dim" if section.title == NOT_COMPARED else ""
            lines = [Text(f"- {one_line(line)}", style) for line in section.lines]
            shown += [Text(section.title, style="bold"), *lines, ""]
    return shown


def mark_up(table: Table) -> list[RenderableType]:
    """A table with its title and notes; below it its column of reasons, a line for each row."""
    return [*_without_reasons(table), *_reasons(table)]


def _reasons(table: Table) -> list[Text]:
    if REASON not in table.headers:
        return []
    # What stands before the numbers says which row it is.
    names = list(takewhile(lambda header: header not in table.numeric, table.headers))
    lines = []
    for row in table.rows:
        settings = [text if name == "backend" else f"{name} {text}" for name, text in zip(names, row, strict=False)]
        reason = row[table.headers.index(REASON)]
        lines.append(Text(one_line(": ".join(filter(None, (", ".join(settings), reason))))))
    return lines


def _without_reasons(table: Table) -> list[RenderableType]:
    # No lines and one blank between columns: a matrix of four axes needs the rest of 100 columns. A column of
    # reasons would be a few letters wide, so they stand below.
    title = Text(table.title, style="bold")
    marked = RichTable(title=title, title_justify="left", title_style="", box=None, padding=(0, 1, 0, 0))
    for header in table.headers:
        if header == REASON:
            continue
        # One word a line, so that a column is no wider than it must be.
        heading = Text("\n".join(header.replace("_", " ").split()), style="underline")
        marked.add_column(heading, justify="right" if header in table.numeric else "left", overflow="fold")
    for index, row in enumerate(table.rows):
        cells = zip(table.headers, row, strict=True)
        marked.add_row(*(_cell(table, index, header, text) for header, text in cells if header != REASON))
    return [marked, *(Text(note, style="dim") for note in table.notes)]


def _cell(table: Table, index: int, header: str, text: str) -> Text:
    text = one_line(text)  # a terminal obeys control characters
    if (index, header) in table.bold:
        return Text(text, style="bold")
    return Text(text, style=COLORS.get(text, "") if header == "outcome" else "")
