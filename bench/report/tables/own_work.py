"""Every phase over ranks: how far ranks are apart, what each works itself, and what it waits for the others."""

from collections.abc import Callable
from operator import itemgetter

from bench.report.gate import RankPhase, Spread
from bench.report.rows import Row, Sampled, Summary
from bench.report.tables.raw_matrix import detailed_rows, row_columns
from bench.report.tables.table import Column, Table, of_part, table_of
from bench.statistics.straggler import CHANCE, SHARE, USUAL
from bench.units import UNKNOWN, ms, percent

SHORT = 0.01
"""Share of the step below which a phase is left out."""


def own_work(summary: Summary) -> Table:
    """One row for each phase of a result with several ranks."""
    rows, left_out = detailed_rows(summary)
    shown: list[tuple[Row, RankPhase]] = [
        (row, phase)
        for row in rows
        if isinstance(row.measured, Sampled) and row.measured.gate
        for phase in row.measured.gate.phases
        if phase.time_s.max_s >= SHORT * row.measured.gate.phases[-1].time_s.max_s
    ]
    phase_columns = [
        Column[RankPhase]("phase", lambda phase: phase.name),
        *_columns("", lambda phase: phase.time_s),
        *_columns("own ", lambda phase: phase.own_s),
    ]
    return table_of(
        "Own work of ranks, ms",
        shown,
        [*of_part(itemgetter(0), row_columns(summary)), *of_part(itemgetter(1), phase_columns)],
        notes=(
            "Means of each phase in the phase window: smallest, median and largest of all ranks, and the rank of the"
            " largest. own: without the time in collectives, in which a rank waits for others and for their data."
            " Waiting for its own samples is own work. A rank that waits for another one has a long phase and little"
            f" own work. Phases that take less than {percent(SHORT)} of the step on every rank are left out.",
            f"A straggler costs more than {percent(SHARE)} of the step. In at least {percent(USUAL)} of the steps, its"
            " own work exceeds that of every other rank by more than this share, in the whole step or in one and the"
            f" same phase. If steps are independent, chance names a rank in at most {percent(float(CHANCE))} of"
            " windows. Rows to doubt names the straggler. Two slow ranks hide each other: look for them in this table.",
            *left_out,
        ),
    )


def _columns(prefix: str, spread: Callable[[RankPhase], Spread | None]) -> list[Column[RankPhase]]:
    def column(name: str, value: Callable[[Spread], str]) -> Column[RankPhase]:
        return Column(
            prefix + name,
            lambda phase: UNKNOWN if (found := spread(phase)) is None else value(found),
            numeric=True,
        )

    return [
        column("min", lambda found: ms(found.min_s)),
        column("median", lambda found: ms(found.median_s)),
        column("max", lambda found: ms(found.max_s)),
        column("max's rank", lambda found: str(found.rank)),
    ]
