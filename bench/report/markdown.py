"""Markdown, and nothing of what it says: see `tables` and `header`."""

import re
from collections.abc import Sequence
from typing import get_args

from bench.outcome import Result
from bench.probe import Probe
from bench.report import tables
from bench.report.flags import flags
from bench.report.header import files, header, method
from bench.report.summary import summarize
from bench.report.tables import Statistic, Table


def render(results: Sequence[Result], probes: Sequence[Probe] = ()) -> str:
    """The report of ``results``. It reads well raw: columns are aligned in the source."""
    if not results:
        return "# Training benchmark\n\nNo results.\n"
    summary = summarize(results)
    doubts = flags(summary)
    lines = [
        "# Training benchmark",
        "",
        *(f"- **{escape(name)}:** {escape(value)}" for name, value in header(summary)),
        "",
        *section(tables.regimes(summary)),
        *section(tables.verdicts(probes)),
        *section(tables.matrix(summary)),
        "## Rows to doubt",
        "",
        *([f"- {escape(doubt)}" for doubt in doubts] or ["None."]),
        "",
        *section(tables.steps(summary)),
        *(line for statistic in get_args(Statistic) for line in section(tables.phases(summary, statistic))),
        *section(tables.ranks(summary)),
        "## How it was measured",
        "",
        *(f"{number}. {escape(line)}" for number, line in enumerate(method(summary), start=1)),
        "",
        "## Where the results lie",
        "",
        "Below the run's folder; `b<batch>/result.json` of a cell holds the raw samples of every rank.",
        "",
        *(f"- {escape(cell)}: {escape(path)}" for cell, path in files(summary)),
    ]
    return "\n".join(lines) + "\n"


def main_tables(results: Sequence[Result], probes: Sequence[Probe] = ()) -> str:
    """The raw matrix and the mean phases: what `bench run` ends with."""
    summary = summarize(results)
    return "\n".join(
        [
            *section(tables.matrix(summary)),
            *section(tables.phases(summary, "mean")),
            *section(tables.verdicts(probes)),
        ]
    )


def escape(text: str) -> str:
    """``text`` as markdown that shows it literally, also inside a table."""
    entities = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # What cannot be markup stays as it is, so that the raw text reads well: snake_case, a * b, [0].
    marked = re.sub(r"[\\`|~]|(?<! )\*|\*(?! )|(?<=\])\(|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\\g<0>", entities)
    return " ".join(marked.split())


def section(table: Table) -> list[str]:
    """A table under its heading with its notes; nothing for a table without rows."""
    if not table.rows:
        return []
    notes = [line for note in table.notes for line in (escape(note), "")]
    return [f"## {escape(table.title)}", "", *_table(table), "", *notes]


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
