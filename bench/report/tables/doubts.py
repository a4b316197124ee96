"""The section of results that should not be trusted without a second look."""

from bench.records.outcome import Tone
from bench.report.doubts import Doubt, Grade, doubts
from bench.report.naming import row_name
from bench.report.rows import Summary
from bench.report.tables.table import Column, Lines, Table, table_of

TITLE = "Rows to doubt"
TONES: dict[Grade, Tone] = {"invalid": "bad", "inaccurate": "warning", "note": "neutral"}


def doubts_section(summary: Summary) -> Table | Lines:
    """One row for each doubt, the worst first."""
    if not (found := doubts(summary)):
        return Lines(title=TITLE, lines=("None.",))
    columns = (
        Column[Doubt]("grade", lambda doubt: doubt.grade, tone=lambda doubt: TONES[doubt.grade]),
        Column[Doubt]("row", lambda doubt: row_name(summary, doubt.row) if doubt.row else "all"),
        Column[Doubt]("why", lambda doubt: doubt.reason),
    )
    notes = (
        "invalid: the figures are wrong, or belong to another setting: do not use them. inaccurate: they may be off."
        " note: the figures are valid, and no other table marks the row.",
    )
    return table_of(TITLE, found, columns, notes=notes)
