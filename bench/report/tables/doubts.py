"""The section of results that should not be trusted without a second look."""

from bench.report.doubts import doubts
from bench.report.naming import row_name
from bench.report.rows import Summary
from bench.report.tables.table import Lines

TITLE = "Rows to doubt"


def doubts_section(summary: Summary, none: str | None = None) -> Lines:
    """One sentence for each doubt.

    Args:
        none: what to say where there is no doubt; by default, the section is empty.
    """
    sentences = tuple(doubt_sentences(summary))
    if not sentences and none is not None:
        return Lines(title=TITLE, lines=(none,))
    return Lines(title=TITLE, lines=sentences, tone="warning")


def doubt_sentences(summary: Summary) -> list[str]:
    """One sentence for each doubt; empty when there is none."""
    return [
        f"{row_name(summary, doubt.row)}: {doubt.reason}" if doubt.row else doubt.reason for doubt in doubts(summary)
    ]
