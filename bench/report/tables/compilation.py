"""What torch.compile did, and how long it took."""

from collections.abc import Callable

from bench.records.rank_outcome import Compilation
from bench.report.rows import Sampled, Summary
from bench.report.tables.raw_matrix import details_of
from bench.report.tables.table import Column, Table
from bench.units import ms


def compilation(summary: Summary) -> Table:
    """One row for each result of a compiled cell. Empty where nothing was compiled."""
    columns = [
        Column[Sampled]("compile ms", _of_slowest(lambda one: ms(one.compile_s)), numeric=True),
        Column[Sampled]("graphs", _of_slowest(lambda one: str(one.graphs)), numeric=True),
        Column[Sampled]("graph breaks", _of_slowest(lambda one: str(sum(one.graph_breaks.values()))), numeric=True),
        Column[Sampled]("why", _of_slowest(lambda one: "; ".join(one.graph_breaks)), prose=True),
    ]
    return details_of(
        summary,
        "Compilation",
        columns,
        notes=(
            "Of the rank that took longest. compile ms: in torch.compile; part of the warm-up, and of no measured step."
            " A graph break splits what is compiled: the parts between breaks are compiled one by one.",
        ),
        which=lambda measured: bool(_compilations(measured)),
    )


def _compilations(measured: Sampled) -> list[Compilation]:
    return [rank.raw.compilation for rank in measured.ranks if rank.raw.compilation]


def _of_slowest(words: Callable[[Compilation], str]) -> Callable[[Sampled], str]:
    return lambda measured: words(max(_compilations(measured), key=lambda one: one.compile_s))
