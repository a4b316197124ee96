"""Everything about one cell, as tables and verbatim text. Pure: the caller reads the files."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from statistics import fmean
from typing import NamedTuple

from pydantic import JsonValue

from bench.errors import one_line
from bench.records.cell import Regime
from bench.records.figures import CAPACITY_SHARE, COLUMNS, Figure
from bench.records.leaves import flat
from bench.records.outcome import Ok, Result
from bench.records.rank_outcome import RankOk
from bench.records.verdict import Probe
from bench.report.naming import batch_of, settings_name, short_reason
from bench.report.rows import CellRows, Measured, Rank, Row, Sampled
from bench.report.sources import Newest, newest_sources
from bench.report.summary import row_of, summarize
from bench.report.tables import conditions
from bench.report.tables.account import account_of_each
from bench.report.tables.checkpoints import checkpoints
from bench.report.tables.compilation import compilation
from bench.report.tables.phases import P95_NOTE, phases
from bench.report.tables.raw_matrix import of_rank, outcome_column, shown
from bench.report.tables.regimes import (
    ADAM_COLUMN,
    ATTENTION_COLUMN,
    DTYPE_COLUMNS,
    MATMUL_COLUMN,
    OPTIONS_COLUMN,
    REGIME_COLUMNS,
)
from bench.report.tables.searches import searches
from bench.report.tables.steps import steps
from bench.report.tables.table import Column, Table, of_part, table_of, without_repeats
from bench.report.tables.verbatim import Files, Verbatim, batch, verbatim
from bench.store.spool import Footprint, Walked
from bench.units import UNKNOWN, duration, gib, ms, rate


class _Attempt(NamedTuple):
    """One result with its row."""

    result: Result
    row: Row


class _RankOfAttempt(NamedTuple):
    batch: str
    rank: Rank


def title(results: Sequence[Result]) -> str:
    """The cell in one line."""
    cell = results[0].attempt.cell
    axes = {"backend": cell.backend, **results[0].axes} | {"backend": cell.backend}
    return f"{settings_name(axes, axes)} ({cell.slug})"


def show(
    results: Sequence[Result],
    files: Mapping[str, Files],
    probe: Probe | None = None,
    walked: Sequence[Walked] = (),
    newest: Newest | None = None,
) -> list[Table | Verbatim]:
    """Everything that is known about the cell of ``results``.

    Args:
        results: all results of one cell.
        files: by the attempt's slug.
        newest: the newest sources of the run; by default, those of these results.
    """
    newest = newest or newest_sources(results)
    summary = summarize(results, newest=newest)
    attempts = [_Attempt(result, row_of(result, newest=newest)) for result in results]
    measured = [(batch(result), result.conditions) for result in results if result.conditions is not None]
    parts = [
        _attempts(attempts, summary.cells[0]),
        _regimes(attempts),
        _ranks(attempts),
        _imported(attempts),
        _notes(attempts),
        phases(summary, "mean"),
        phases(summary, "share"),
        steps(summary),
        compilation(summary),
        checkpoints(summary),
        account_of_each(results),
        *([searches([probe])] if probe else []),
        _walk(walked),
        _settings(results[0]),
        conditions.machine(measured),
        conditions.gpus(measured),
        _files(results, files),
    ]
    return [
        *(table for table in parts if table.rows),
        *verbatim(results, files),
    ]


def _settings(result: Result) -> Table:
    content = flat(result.attempt.cell.model_dump(mode="json"))
    content.pop("script", None)  # there is none: the parts of one have keys of their own
    names = {path: path.rpartition(".")[2] for path in content if not path.startswith("options.")}
    known = result.known(dict.fromkeys(names.values()))
    shown = [(path, value) for path, value in content.items() if path not in names or names[path] in known]
    columns = [
        Column[tuple[str, JsonValue]]("setting", lambda pair: pair[0]),
        Column[tuple[str, JsonValue]](
            "value", lambda pair: pair[1] if isinstance(pair[1], str) else json.dumps(pair[1])
        ),
    ]
    return table_of("Settings", shown, columns)


def _attempts(attempts: Sequence[_Attempt], cell: CellRows) -> Table:
    def measured(value: Callable[[Measured], str]) -> Callable[[_Attempt], str]:
        return lambda attempt: value(attempt.row.measured) if attempt.row.measured else ""

    columns = [
        Column[_Attempt]("batch per rank", lambda attempt: batch_of(attempt.row), numeric=True),
        outcome_column(lambda attempt: attempt.row, lambda attempt: cell.traits(attempt.row)),
        Column[_Attempt]("samples/s", measured(lambda figures: rate(figures.samples_per_s_global)), numeric=True),
        Column[_Attempt]("95 % interval", measured(_interval), numeric=True),
        Column[_Attempt]("step ms", measured(lambda figures: ms(figures.step_time_s_rank_max)), numeric=True),
        Column[_Attempt]("wall", lambda attempt: duration(attempt.result.wall_s)),
        Column[_Attempt]("isolation", lambda attempt: attempt.result.isolation or "none"),
        Column[_Attempt]("started", lambda attempt: attempt.result.started_at),
        Column[_Attempt]("why", lambda attempt: short_reason(attempt.row.reason)),
    ]
    return table_of(
        "Attempts",
        attempts,
        columns,
        notes=(
            "samples/s is global; step ms is the mean of the slowest rank. isolation: a fork of a rank server, or a"
            " separate launch.",
        ),
    )


def _interval(measured: Measured) -> str:
    interval = measured.interval
    return f"{rate(interval[0])} to {rate(interval[1])}" if interval else UNKNOWN


def _regimes(attempts: Sequence[_Attempt]) -> Table:
    """One row a rank, and more only where attempts of the cell differ."""
    ranks = [rank for result, _ in attempts if isinstance(result.outcome, Ok) for rank in result.outcome.ranks]
    bound = any(result.attempt.cell.train.cpu_affinity for result, _ in attempts)
    columns = [
        Column[RankOk]("rank", lambda rank: str(rank.rank), numeric=True),
        *of_part(_regime, REGIME_COLUMNS),
        Column[RankOk]("sharded", lambda rank: f"{rank.regime.sharded_parameters:,}", numeric=True),
        *(of_part(_regime, [OPTIONS_COLUMN]) if any(OPTIONS_COLUMN.value(rank.regime) for rank in ranks) else []),
        *of_part(_regime, DTYPE_COLUMNS),
        *(of_part(_regime, [MATMUL_COLUMN]) if any(rank.regime.matmul_shares for rank in ranks) else []),
        *(of_part(_regime, [ATTENTION_COLUMN]) if any(rank.regime.attention_kernels for rank in ranks) else []),
        *(of_part(_regime, [ADAM_COLUMN]) if any(rank.regime.adam for rank in ranks) else []),
        Column[RankOk]("threads", lambda rank: str(rank.threads), numeric=True),
        *([Column[RankOk]("cores", lambda rank: str(rank.cores or UNKNOWN), numeric=True)] if bound else []),
        Column[RankOk]("units", lambda rank: ", ".join(rank.units) or "none"),
    ]
    return without_repeats(
        table_of(
            "Regime",
            sorted(ranks, key=lambda rank: rank.rank),
            columns,
            notes=(
                "Observed in the processes. sharded: parameters that the rank holds only a part of. threads: of its"
                " operators on the CPU. units: classes of the modules that are sharded or compiled, each as one.",
            ),
        )
    )


def _regime(rank: RankOk) -> Regime:
    return rank.regime


def _of_rank(figure: Figure, line: _RankOfAttempt) -> str:
    return of_rank(figure, line.rank)


RANK_COLUMNS: tuple[Column[_RankOfAttempt], ...] = (
    Column("batch per rank", lambda line: line.batch, numeric=True),
    Column("rank", lambda line: str(line.rank.raw.rank), numeric=True),
    Column("mean ms", lambda line: ms(line.rank.step.mean_s), numeric=True),
    Column("median ms", lambda line: ms(line.rank.step.median_s), numeric=True),
    Column("p95 ms", lambda line: ms(line.rank.step.p95_s), numeric=True),
    Column("setup ms", lambda line: ms(line.rank.raw.setup_s), numeric=True),
    Column("warm-up ms", lambda line: ms(line.rank.raw.warmup_s), numeric=True),
    *(
        Column[_RankOfAttempt](figure.header.removeprefix("peak "), partial(_of_rank, figure), numeric=True)
        for figure in COLUMNS
    ),
    Column("outside torch GiB", lambda line: gib(line.rank.raw.memory.overhead_bytes), numeric=True),
    Column("capacity GiB", lambda line: gib(line.rank.raw.memory.capacity_bytes), numeric=True),
    Column("retries", lambda line: str(line.rank.raw.memory.alloc_retries), numeric=True),
)
HOST_COLUMN: Column[_RankOfAttempt] = Column(
    "host ms", lambda line: ms(fmean(line.rank.raw.host_times_s) if line.rank.raw.host_times_s else None), numeric=True
)
"""Mean time in which the host queues a step."""


def _ranks(attempts: Sequence[_Attempt]) -> Table:
    lines = [
        _RankOfAttempt(batch(result), rank)
        for result, row in attempts
        if isinstance(row.measured, Sampled)
        for rank in row.measured.ranks
    ]
    return table_of(
        "Ranks",
        lines,
        [*RANK_COLUMNS, *([HOST_COLUMN] if any(line.rank.raw.host_times_s for line in lines) else [])],
        notes=(
            f"Steps and memory peaks of the throughput window; {P95_NOTE}. retries: how often the allocator had to free"
            " its blocks and ask again."
            + (" host: the mean time to queue a step." if any(line.rank.raw.host_times_s for line in lines) else ""),
        ),
    )


IMPORTED_COLUMNS: tuple[Column[Measured], ...] = (
    *(Column[Measured](figure.header, partial(shown, figure), numeric=True) for figure in COLUMNS if figure.stated),
    Column("of capacity", partial(shown, CAPACITY_SHARE), numeric=True),
    Column("source", lambda measured: measured.source or UNKNOWN),
)


def _imported(attempts: Sequence[_Attempt]) -> Table:
    imported = [
        (batch_of(row), row.measured) for _, row in attempts if row.measured and not isinstance(row.measured, Sampled)
    ]
    batch = Column[tuple[str, Measured]]("batch per rank", itemgetter(0), numeric=True)
    return table_of(
        "Imported figures" if any(measured.source for _, measured in imported) else "Figures of the script",
        imported,
        [batch, *of_part(_figures, IMPORTED_COLUMNS)],
        notes=("Means without samples, as a script or another source gives them.",),
    )


def _notes(attempts: Sequence[_Attempt]) -> Table:
    notes = [(batch_of(row), name, str(value)) for _, row in attempts for name, value in row.notes.items()]
    columns = [
        Column[tuple[str, str, str]]("batch per rank", itemgetter(0), numeric=True),
        Column[tuple[str, str, str]]("name", lambda note: one_line(note[1])),
        Column[tuple[str, str, str]]("value", lambda note: one_line(note[2])),
    ]
    return table_of("Notes of the source", notes, columns, notes=("As written; bench compares none of them.",))


def _figures(pair: tuple[str, Measured]) -> Measured:
    return pair[1]


def _walk(walked: Sequence[Walked]) -> Table:
    marks = [
        (walk.rank, mark)
        for marks in zip(*(walk.footprints for walk in walked), strict=False)
        for walk, mark in zip(walked, marks, strict=True)
    ]
    columns = [
        Column[tuple[int, Footprint]]("batch per rank", lambda pair: str(pair[1].batch_per_rank), numeric=True),
        Column[tuple[int, Footprint]]("rank", lambda pair: str(pair[0]), numeric=True),
        Column[tuple[int, Footprint]]("step ms", lambda pair: ms(pair[1].step_time_s), numeric=True),
        Column[tuple[int, Footprint]](
            "allocated GiB", lambda pair: gib(pair[1].memory.peak_allocated_bytes), numeric=True
        ),
        Column[tuple[int, Footprint]]("capacity GiB", lambda pair: gib(pair[1].memory.capacity_bytes), numeric=True),
    ]
    return table_of(
        "Walk",
        marks,
        columns,
        notes=("Batches tried one after the other in one process. They show where to search and are no measurement.",),
    )


def _files(results: Sequence[Result], files: Mapping[str, Files]) -> Table:
    folders = [(batch(result), files[result.attempt.slug].folder) for result in results if result.attempt.slug in files]
    scripts = any(left.command for left in files.values())
    by_hand = "; `sh command.sh` runs the attempt again by hand" if scripts else ""
    launched = any(result.isolation for result in results)
    return table_of(
        "Files",
        folders,
        [
            Column[tuple[str, str]]("batch per rank", itemgetter(0), numeric=True),
            Column[tuple[str, str]]("folder", itemgetter(1)),
        ],
        notes=(f"result.json holds the raw samples of every rank{by_hand}.",) if launched else (),
    )
