"""Node, mean step and peak memory of every rank."""

from functools import partial

from bench.records.figures import Figure
from bench.report.rows import Sampled, Summary
from bench.report.tables.raw_matrix import details_of, figure_columns, of_rank
from bench.report.tables.table import Column, Table
from bench.units import UNKNOWN, ms


def ranks(summary: Summary) -> Table:
    """One row per result that bench measured, with one value a rank in each column."""
    measured = [row.measured for row in summary.rows if isinstance(row.measured, Sampled)]
    columns = [
        *([Column[Sampled]("node", _nodes)] if any(rank.raw.node for one in measured for rank in one.ranks) else []),
        Column[Sampled]("step ms", lambda measured: ", ".join(map(ms, measured.step_time_s_per_rank))),
        *(Column[Sampled](figure.header, partial(_each, figure)) for figure in figure_columns(summary)),
    ]
    return details_of(
        summary,
        "Ranks",
        columns,
        notes=(
            "One value for each rank, rank 0 first. Ranks wait for each other in every step, so their step times"
            ' do not show a straggler: "Steps" names the rank that gates the step.',
        ),
    )


def _nodes(measured: Sampled) -> str:
    return ", ".join(rank.raw.node or UNKNOWN for rank in measured.ranks)


def _each(figure: Figure, measured: Sampled) -> str:
    return ", ".join(of_rank(figure, rank) for rank in measured.ranks)
