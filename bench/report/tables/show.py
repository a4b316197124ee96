"""Everything about one cell, as tables and verbatim text. Pure: the caller reads the files."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter, itemgetter
from statistics import fmean
from typing import Any

from pydantic import JsonValue

from bench.errors import one_line
from bench.records.base import written
from bench.records.cell import Regime
from bench.records.conditions import Conditions, GpuConditions
from bench.records.figures import CAPACITY_SHARE, COLUMNS, Figure
from bench.records.json_diff import flat
from bench.records.outcome import KINDS, Failed, Hang, Ok, Result
from bench.records.rank_outcome import Footprint, RankOk, Walked
from bench.records.verdict import Probe
from bench.report.controlled import RUN, machine_names
from bench.report.doubts import causes, doubts
from bench.report.implausible import disturbances
from bench.report.naming import REASON_LIMIT, batch_of, further_launch, result_batch, settings_name, short_reason
from bench.report.rows import Measured, Rank, Row, RowId, Summary
from bench.report.summary import Newest, newest_sources, row_of, summarize
from bench.report.tables.account import account_of_each
from bench.report.tables.raw_matrix import (
    measured_column,
    micro_batches,
    of_rank,
    outcome_column,
    shown,
    times_columns,
)
from bench.report.tables.regimes import regime_columns
from bench.report.tables.searches import searches
from bench.report.tables.steps import P95_NOTE, checkpoints, compilation, own_work, phases, steps
from bench.report.tables.table import Column, Number, Table, of_part, table_of, without_repeats, without_unknown
from bench.units import UNKNOWN, duration, gib, in_table, ms, percent, rate

Attempts = Sequence[tuple[Result, Row]]
"""Each result with its row."""
BATCH: Column[Any] = Number("batch per rank", itemgetter(0))
"""Of items that begin with the batch in words."""


SHOWN_COLLECTIVES = 10
LOG_LINES = 20
"""Of the end of each log."""


@dataclass(frozen=True, kw_only=True)
class Files:
    """The files of one attempt beside its result."""

    folder: str
    command: str | None = None
    """The script that runs the attempt again."""
    log_tails: Mapping[str, str] = field(default_factory=dict)
    """The end of each log, by its name."""


@dataclass(frozen=True, kw_only=True)
class Verbatim:
    """Lines that are shown as they are."""

    title: str
    text: str


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
    whole: Summary | None = None,
) -> list[Table | Verbatim]:
    """Everything that is known about the cell of ``results``.

    Args:
        files: by the attempt's slug.
        newest: the newest sources of the run; by default, those of these results.
        whole: the summary of the run, which knows what is wrong beside its other cells; by default, of these results.
    """
    newest = newest or newest_sources(results)
    summary = summarize(results, newest=newest)
    attempts = _with_rows(results, whole or summary, newest)
    parts = [
        _attempts(attempts, whole or summary),
        _regimes(results),
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
        _conditions(results),
        _gpus(results),
        _files(results, files),
    ]
    return [
        *(table for table in parts if table.rows),
        *_verbatim(results, files),
    ]


def in_brief(
    results: Sequence[Result],
    files: Mapping[str, Files],
    newest: Newest,
    whole: Summary,
) -> list[Table | Verbatim]:
    """Of one row of a report: its attempts, ranks, phases and time, and why it failed. As in `show`, without notes and
    columns without values."""
    summary = summarize(results, newest=newest)
    attempts = _with_rows(results, whole, newest)
    parts = [
        _attempts(attempts, whole),
        _ranks(attempts),
        phases(summary, "mean"),
        own_work(summary),
        account_of_each(results),
    ]
    tables = [without_unknown(replace(table, notes=())) for table in parts if table.rows]
    return [*tables, *_verbatim(results, files)]


def cell_key(whole: Summary, result: Result) -> tuple[str, ...]:
    """What names the cell of a result in the ids of the rows of ``whole``."""
    machine = machine_names(whole.machines)[whole.machines.index(result.machine)]
    parts = (result.attempt.cell.id, machine, result.axes.get(RUN))
    return tuple(str(part) for part in parts if part is not None)


def _with_rows(results: Sequence[Result], whole: Summary, newest: Newest) -> Attempts:
    known = {row.id.cell: row.measured.variation for row in whole.rows if row.measured}

    def row(result: Result) -> Row:
        attempt, key = result.attempt, cell_key(whole, result)
        row_id = RowId(key, attempt.batch_per_rank, attempt.short)
        return row_of(result, row_id=row_id, variation=known.get(key), newest=newest)

    return [(result, row(result)) for result in results]


def _settings(result: Result) -> Table:
    content = flat(result.attempt.cell.model_dump(mode="json"))
    content.pop("script", None)  # there is none: the parts of one have keys of their own
    if result.attempt.cell.train.global_batch is not None:
        content.pop("train.accumulate")  # "Attempts" has that of each batch
    names = {path: path.rpartition(".")[2] for path in content if not path.startswith("options.")}
    known = result.known(dict.fromkeys(names.values()))
    shown = [(path, value) for path, value in content.items() if path not in names or names[path] in known]
    columns: list[Column[tuple[str, JsonValue]]] = [
        Column("setting", lambda pair: pair[0]),
        Column("value", lambda pair: written(pair[1])),
    ]
    return table_of("Settings", shown, columns)


def _batch(attempt: Row) -> str:
    return batch_of(attempt) + further_launch(attempt.launch)


def _attempts(attempts: Attempts, whole: Summary) -> Table:
    cells, doubted = {cell.rows[0].id.cell: cell for cell in whole.cells}, causes(whole)

    def why(row: Row) -> str | None:
        if row.measured is None or cells[row.id.cell].is_sound(row):
            return row.reason
        begin = f"launch {row.launch}: "
        spoils = [doubt for doubt in doubts(whole) if doubt.row and doubt.row.id == row.id and doubt.grade == "invalid"]
        own = [doubt.reason.removeprefix(begin) for doubt in spoils if doubt.reason.startswith(begin)]
        return own[0] if own else doubted.get(row.id)

    of_row: list[Column[Row]] = [
        Number("batch per rank", _batch),
        *micro_batches([row for _, row in attempts], lambda row: row),
        outcome_column(lambda row: cells[row.id.cell].traits(row) if row.measured else KINDS[row.outcome]),
        measured_column("samples/s", lambda measured: rate(measured.samples_per_s_global)),
        measured_column("95 % interval", _interval),
        measured_column("step ms", lambda measured: ms(measured.step_time_s_rank_max)),
    ]
    of_result: list[Column[Result]] = [
        Column("wall", lambda result: duration(result.wall_s)),
        Column("isolation", lambda result: result.isolation or "none"),
        Column("started", lambda result: result.started_at),
    ]
    return table_of(
        "Attempts",
        attempts,
        [
            *of_part(itemgetter(1), of_row),
            *of_part(itemgetter(0), of_result),
            Column("why", lambda attempt: short_reason(why(attempt[1]))),
        ],
        notes=(
            "samples/s is global; step ms is the mean of the slowest rank. isolation: a fork of a rank server, or a"
            " separate launch.",
        ),
    )


def _interval(measured: Measured) -> str:
    interval = measured.interval
    return f"{rate(interval[0])} to {rate(interval[1])}" if interval else UNKNOWN


CORE_COLUMNS: tuple[Column[RankOk], ...] = (
    Number("cores", lambda rank: str(rank.cores or UNKNOWN)),
    Column("CPUs", lambda rank: rank.cpus or UNKNOWN),
    Number("NUMA node", lambda rank: in_table(rank.numa_node, "count")),
)


def _regimes(results: Sequence[Result]) -> Table:
    """One row a rank, and more only where attempts of the cell differ."""
    ranks = [rank for result in results if isinstance(result.outcome, Ok) for rank in result.outcome.ranks]
    bound = any(result.attempt.cell.train.cpu_affinity for result in results)
    bound = bound or len({rank.cpus for rank in ranks}) > 1
    sharded = Number[Regime]("sharded", lambda regime: f"{regime.sharded_parameters:,}")
    return without_repeats(
        table_of(
            "What actually ran",
            sorted(ranks, key=lambda rank: rank.rank),
            [
                Number("rank", lambda rank: str(rank.rank)),
                *of_part(attrgetter("regime"), regime_columns([rank.regime for rank in ranks], sharded)),
                Number("threads", lambda rank: str(rank.threads)),
                *(CORE_COLUMNS if bound else ()),
                Column("units", lambda rank: ", ".join(rank.units) or "none"),
            ],
            notes=(
                "Observed in the processes. sharded: parameters that the rank holds only a part of. threads: of its"
                " operators on the CPU. units: classes of the modules that are sharded or compiled, each as one.",
            ),
        )
    )


HOST_NOTE = (
    " host busy or blocked: the mean time until a step is queued. The queue holds few steps, so a host that waits for a"
    " slow device is blocked for about a step: only a time well below the step's says that the host keeps up."
)


def _figure_column(figure: Figure) -> Column[Rank]:
    return Number(figure.header.removeprefix("peak "), partial(of_rank, figure))


def _ranks(attempts: Attempts) -> Table:
    lines = [(result_batch(result), rank) for result, row in attempts for rank in row.ranks]
    queued = any(rank.raw.host_times_s for _, rank in lines)
    known = {figure for figure in COLUMNS if any(of_rank(figure, rank) != UNKNOWN for _, rank in lines)}
    columns: list[Column[Rank]] = [
        Number("rank", lambda rank: str(rank.raw.rank)),
        *of_part(lambda rank: rank.step, times_columns()),
        Number("setup ms", lambda rank: ms(rank.raw.setup_s)),
        Number("warm-up ms", lambda rank: ms(rank.raw.warmup_s)),
        *(_figure_column(figure) for figure in COLUMNS if not figure.rare),
        Number("outside torch GiB", lambda rank: gib(rank.raw.memory.overhead_bytes)),
        Number("capacity GiB", lambda rank: gib(rank.raw.memory.capacity_bytes)),
        Number("retries", lambda rank: str(rank.raw.memory.alloc_retries)),
        *(_figure_column(figure) for figure in COLUMNS if figure.rare and figure in known),
        Number(
            "host busy or blocked ms", lambda rank: ms(fmean(rank.raw.host_times_s) if rank.raw.host_times_s else None)
        ),
    ]
    return table_of(
        "Ranks",
        lines,
        [BATCH, *of_part(itemgetter(1), columns if queued else columns[:-1])],
        notes=(
            f"Steps and memory peaks of the throughput window; {P95_NOTE}. retries: how often the allocator had to free"
            " its blocks and ask again." + (HOST_NOTE if queued else ""),
        ),
    )


def _imported(attempts: Attempts) -> Table:
    imported = [(_batch(row), row.measured) for _, row in attempts if row.measured and not row.sampled]
    columns: list[Column[Measured]] = [
        *(Number[Measured](figure.header, partial(shown, figure)) for figure in COLUMNS if figure.stated),
        Number("memory used", partial(shown, CAPACITY_SHARE)),
        Column("source", lambda measured: measured.source or UNKNOWN),
    ]
    return table_of(
        "Imported figures" if any(measured.source for _, measured in imported) else "Figures of the script",
        imported,
        [BATCH, *of_part(itemgetter(1), columns)],
        notes=("Means without samples, as a script or another source gives them.",),
    )


def _notes(attempts: Attempts) -> Table:
    notes = [(_batch(row), name, str(value)) for _, row in attempts for name, value in row.notes.items()]
    columns: list[Column[tuple[str, str, str]]] = [
        Number("batch per rank", itemgetter(0)),
        Column("name", lambda note: one_line(note[1])),
        Column("value", lambda note: one_line(note[2])),
    ]
    return table_of("Notes of the source", notes, columns, notes=("As written; bench compares none of them.",))


def _walk(walked: Sequence[Walked]) -> Table:
    marks = [
        (walk.rank, mark)
        for marks in zip(*(walk.footprints for walk in walked), strict=False)
        for walk, mark in zip(walked, marks, strict=True)
    ]
    columns: list[Column[tuple[int, Footprint]]] = [
        Number("batch per rank", lambda pair: str(pair[1].batch_per_rank)),
        Number("rank", lambda pair: str(pair[0])),
        Number("step ms", lambda pair: ms(pair[1].step_time_s)),
        Number("allocated GiB", lambda pair: gib(pair[1].memory.peak_allocated_bytes)),
        Number("capacity GiB", lambda pair: gib(pair[1].memory.capacity_bytes)),
    ]
    return table_of(
        "Walk",
        marks,
        columns,
        notes=("Batches tried one after the other in one process. They show where to search and are no measurement.",),
    )


def _conditions(results: Sequence[Result]) -> Table:
    """What else ran on the machine during the attempts: one row an attempt."""
    columns: list[Column[Conditions]] = [
        Number("others' CPU before", lambda conditions: percent(conditions.others_cpu_share_before)),
        Number("others' CPU", lambda conditions: percent(conditions.others_cpu_share)),
        Number("least available GiB", lambda conditions: gib(conditions.available_bytes_min)),
        Number("swapped GiB", lambda conditions: gib(conditions.swapped_bytes)),
        Number("disk free GiB", lambda conditions: gib(conditions.disk_free_bytes_min)),
        Column("disturbances", lambda conditions: "; ".join(disturbances(conditions)) or "none"),
    ]
    return table_of(
        "Machine conditions",
        [(result_batch(result), result.conditions) for result in results if result.conditions],
        [BATCH, *of_part(itemgetter(1), columns)],
        notes=(
            "others: processes that do not belong to this run, as a share of all cores. before: since the previous"
            " attempt.",
        ),
    )


def _gpus(results: Sequence[Result]) -> Table:
    """What else ran on the GPUs during the attempts: one row a GPU and attempt."""
    gpus = [
        (result_batch(result), str(index), gpu)
        for result in results
        if result.conditions
        for index, gpu in enumerate(result.conditions.gpus)
    ]
    columns: list[Column[GpuConditions]] = [
        Number("busy before", lambda gpu: percent(gpu.busy_share_before)),
        Number("others before", lambda gpu: in_table(gpu.others_before, "count")),
        Number("GiB before", lambda gpu: gib(gpu.others_bytes_before)),
        Number("least clock", lambda gpu: percent(gpu.sm_clock_share_min)),
        Number(
            "mean MHz", lambda gpu: UNKNOWN if gpu.sm_clock_hz_mean is None else f"{gpu.sm_clock_hz_mean / 1e6:.0f}"
        ),
        Number("most °C", lambda gpu: in_table(gpu.temperature_c_max, "count")),
        Column("throttled", lambda gpu: UNKNOWN if gpu.throttled is None else ", ".join(gpu.throttled) or "no"),
    ]
    return table_of(
        "GPU conditions",
        gpus,
        [BATCH, Number("GPU", itemgetter(1)), *of_part(itemgetter(2), columns)],
        notes=(
            "others: processes. Clocks of the multiprocessors, temperature and throttling: in the throughput window."
            " least clock: share of the highest.",
        ),
    )


def _files(results: Sequence[Result], files: Mapping[str, Files]) -> Table:
    folders = [
        (result_batch(result), files[result.attempt.slug].folder) for result in results if result.attempt.slug in files
    ]
    scripts = any(left.command for left in files.values())
    by_hand = "; `sh command.sh` runs the attempt again by hand" if scripts else ""
    launched = any(result.isolation for result in results)
    return table_of(
        "Files",
        folders,
        [
            BATCH,
            Column("folder", itemgetter(1)),
        ],
        notes=(f"result.json holds the raw samples of every rank{by_hand}.",) if launched else (),
    )


def _verbatim(results: Sequence[Result], files: Mapping[str, Files]) -> Iterator[Verbatim]:
    """The commands, each once, and the logs of failures. ``files`` is by the attempt's slug."""
    for part in _parts(results, files):
        yield Verbatim(title=one_line(part.title), text=_plain(part.text))


def _parts(results: Sequence[Result], files: Mapping[str, Files]) -> Iterator[Verbatim]:
    scripts: dict[str, list[str]] = {}
    for result in results:
        if (of_attempt := files.get(result.attempt.slug)) and of_attempt.command:
            scripts.setdefault(of_attempt.command, []).append(result_batch(result))
    for script, batches in scripts.items():
        yield Verbatim(title=f"command.sh of batch {', '.join(batches)}", text=script)
    for result in results:
        if reason := row_of(result).reason:
            evidence = result.outcome.evidence if isinstance(result.outcome, Failed) else None
            cut = len(one_line(reason)) > REASON_LIMIT
            if text := "\n\n".join(part for part in (reason if cut else None, evidence) if part):
                yield Verbatim(title=f"Why batch {result_batch(result)} {KINDS[result.outcome.kind].verb}", text=text)
        for rank in result.outcome.stuck if isinstance(result.outcome, Hang) else ():
            latest = "\n".join(f"{made.number} {made}" for made in rank.collectives[-SHOWN_COLLECTIVES:])
            text = f"{rank.phase} {rank.step}/{rank.steps}\n\nlatest collectives:\n{latest or 'none'}\n\n{rank.stacks}"
            yield Verbatim(title=f"Rank {rank.rank} in the hang of batch {result_batch(result)}", text=text)
        if KINDS[result.outcome.kind].explained_by_logs and (of_attempt := files.get(result.attempt.slug)):
            for name, tail in of_attempt.log_tails.items():
                yield Verbatim(title=f"End of {name}, batch {result_batch(result)}: {result.outcome.kind}", text=tail)


def _plain(text: str) -> str:
    """Without control characters: a log may hold any of them, and a terminal would obey them."""
    return "".join(char for char in text.expandtabs() if char.isprintable() or char == "\n")
