"""Everything about one cell, as tables and verbatim text. Pure: what lies in files is handed in."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from bench.records.outcome import Failed, Hang, Ok, Result
from bench.records.verdict import Probe
from bench.report.conditions import doubts, gpus
from bench.report.differences import flat
from bench.report.rows import Row, Sampled
from bench.report.summary import row_of, summarize
from bench.report.tables import attempts
from bench.report.tables.attempts import P95_NOTE, REASON_LIMIT, Table, one_line
from bench.report.tables.searches import verdicts
from bench.store.spool import Walked
from bench.units import UNKNOWN, duration, gib, ms, percent, rate


@dataclass(frozen=True, kw_only=True)
class Files:
    """What one attempt has left beside its result."""

    folder: str
    command: str | None = None
    """The script that runs it again."""
    log_tails: Mapping[str, str] = field(default_factory=dict)
    """The end of each log, by its name."""


@dataclass(frozen=True, kw_only=True)
class Verbatim:
    """Lines that are shown as they are."""

    title: str
    text: str


def title(results: Sequence[Result]) -> str:
    """The cell in one line."""
    first = results[0]
    axes = ", ".join(
        f"{attempts.caption(name)} {attempts.setting(name, value)}"
        for name, value in first.axes.items()
        if name != "backend"
    )
    return ", ".join(part for part in (first.attempt.cell.backend, axes) if part) + f" ({first.attempt.cell.slug})"


def show(
    results: Sequence[Result], files: Mapping[str, Files], probe: Probe | None = None, walked: Sequence[Walked] = ()
) -> list[Table | Verbatim]:
    """What is known of the cell that ``results`` belong to.

    Args:
        results: all of one cell.
        files: by the attempt's slug.
    """
    summary = summarize(results)
    rows = [row_of(result) for result in results]
    parts = [
        _settings(results[0]),
        _attempts(results, rows, summary.cells[0].thrashing),
        _regimes(results),
        _ranks(results, rows),
        _imported(rows),
        *(attempts.phases(summary, statistic) for statistic in ("mean", "share")),
        attempts.steps(summary),
        *([verdicts([probe])] if probe else []),
        _walk(walked),
        _beside(results),
        gpus([(_batch(result), result.conditions) for result in results if result.conditions is not None]),
        _files(results, files),
    ]
    return [
        *(table for table in parts if table.rows),
        *(Verbatim(title=one_line(part.title), text=_plain(part.text)) for part in _verbatim(results, files)),
    ]


def _settings(result: Result) -> Table:
    content = flat(result.attempt.cell.model_dump(mode="json"))
    known = result.known({name.rpartition(".")[2]: None for name in content if not name.startswith("options.")})
    content = {
        name: value
        for name, value in content.items()
        if name.startswith("options.") or name.rpartition(".")[2] in known
    }
    return Table(
        title="Settings",
        headers=("setting", "value"),
        rows=tuple((name, value if isinstance(value, str) else json.dumps(value)) for name, value in content.items()),
        numeric=frozenset(),
    )


def _attempts(results: Sequence[Result], rows: Sequence[Row], thrashing: Collection[int]) -> Table:
    numbers = ("samples/s", "95 % interval", "step ms")
    return Table(
        title="Attempts",
        headers=("batch per rank", "outcome", *numbers, "wall", "isolation", "started", "why"),
        rows=tuple(
            (
                str(row.batch_per_rank),
                attempts.outcome(row, thrashing=row.batch_per_rank in thrashing),
                *_speed(row),
                duration(result.wall_s),
                result.isolation or "none",
                result.started_at,
                one_line(row.reason or "", REASON_LIMIT),
            )
            for result, row in zip(results, rows, strict=True)
        ),
        numeric=frozenset({"batch per rank", *numbers}),
        notes=("samples/s is global; step ms is the slowest rank's mean. isolation: see how it was measured.",),
    )


def _speed(row: Row) -> tuple[str, str, str]:
    if (measured := row.measured) is None:
        return "", "", ""
    interval = measured.interval if isinstance(measured, Sampled) else None
    ends = f"{rate(interval[0])} to {rate(interval[1])}" if interval else UNKNOWN
    return rate(measured.samples_per_s_global), ends, ms(measured.step_time_s_rank_max)


def _regimes(results: Sequence[Result]) -> Table:
    """One line a rank, and more only where attempts of the cell differ."""
    lines: dict[tuple[str, ...], None] = {}
    for result in results:
        for rank in result.outcome.ranks if isinstance(result.outcome, Ok) else ():
            regime = rank.regime
            counts = (regime.world_size, regime.parameters, regime.sharded_parameters)
            dtypes = (regime.weights_dtype, regime.masters_dtype, regime.optimizer_dtype, regime.reduction_dtype)
            named = (str(rank.rank), regime.distributed_type, regime.sharding, *(f"{count:,}" for count in counts))
            lines[(*named, *(dtype or "none" for dtype in dtypes), str(rank.threads))] = None
    counted = ("world size", "parameters", "sharded")
    return Table(
        title="Regime",
        headers=("rank", "type", "sharding", *counted, "weights", "masters", "optimizer", "reduction", "threads"),
        rows=tuple(sorted(lines, key=lambda line: int(line[0]))),
        numeric=frozenset({"rank", "threads", *counted}),
        notes=(
            "Observed in the processes. sharded: parameters of which the rank holds only a part. threads: of a rank's"
            " operators on the CPU.",
        ),
    )


def _ranks(results: Sequence[Result], rows: Sequence[Row]) -> Table:
    times = ("mean ms", "median ms", "p95 ms", "set-up ms", "warm-up ms")
    memory = ("allocated GiB", "reserved GiB", "RSS GiB", "beside torch GiB", "capacity GiB", "retries")
    lines = []
    for result, row in zip(results, rows, strict=True):
        if isinstance(result.outcome, Ok) and isinstance(row.measured, Sampled):
            for raw, rank in zip(result.outcome.ranks, row.measured.ranks, strict=True):
                step, peak = rank.step, rank.memory
                held = (peak.peak_allocated_bytes, peak.peak_reserved_bytes, peak.peak_rss_bytes, peak.overhead_bytes)
                lines.append(
                    (
                        _batch(result),
                        str(rank.rank),
                        *map(ms, (step.mean_s, step.median_s, step.p95_s, raw.setup_s, raw.warmup_s)),
                        *(gib(n_bytes) for n_bytes in (*held, peak.capacity_bytes)),
                        str(peak.alloc_retries),
                    )
                )
    return Table(
        title="Ranks",
        headers=("batch per rank", "rank", *times, *memory),
        rows=tuple(lines),
        numeric=frozenset({"batch per rank", "rank", *times, *memory}),
        notes=(
            f"Steps of the throughput window, and memory peaks over it; {P95_NOTE}. retries: of the allocator, to"
            " find a block.",
        ),
    )


def _imported(rows: Sequence[Row]) -> Table:
    memory = ("peak allocated GiB", "peak reserved GiB", "of capacity")
    return Table(
        title="Imported figures",
        headers=("batch per rank", *memory, "source"),
        rows=tuple(
            (
                str(row.batch_per_rank),
                gib(row.measured.peak_allocated_bytes_rank_max),
                gib(row.measured.peak_reserved_bytes_rank_max),
                percent(row.measured.capacity_share_rank_max),
                row.measured.source or UNKNOWN,
            )
            for row in rows
            if row.measured and not isinstance(row.measured, Sampled)
        ),
        numeric=frozenset({"batch per rank", *memory}),
        notes=("Means without samples, measured elsewhere and otherwise.",),
    )


def _walk(walked: Sequence[Walked]) -> Table:
    return Table(
        title="Walk",
        headers=("batch per rank", "rank", "step ms", "allocated GiB", "capacity GiB"),
        rows=tuple(
            (
                str(mark.batch_per_rank),
                str(walk.rank),
                ms(mark.step_time_s),
                gib(mark.memory.peak_allocated_bytes),
                gib(mark.memory.capacity_bytes),
            )
            for marks in zip(*(walk.footprints for walk in walked), strict=False)
            for walk, mark in zip(walked, marks, strict=True)
        ),
        numeric=frozenset({"batch per rank", "rank", "step ms", "allocated GiB", "capacity GiB"}),
        notes=("Batches tried one after the other in one process: a hint where to search, and no measurement.",),
    )


def _beside(results: Sequence[Result]) -> Table:
    """What the machine did beside each attempt."""
    lines = []
    for result in results:
        if (seen := result.conditions) is not None:
            shares = (percent(seen.others_cpu_share_before), percent(seen.others_cpu_share))
            memory = (gib(seen.available_bytes_min), gib(seen.swapped_bytes), gib(seen.disk_free_bytes_min))
            lines.append((_batch(result), *shares, *memory, "; ".join(doubts(seen)) or "nothing"))
    numbers = ("others' CPU before", "others' CPU", "least available GiB", "swapped GiB", "disk free GiB")
    return Table(
        title="The machine beside it",
        headers=("batch per rank", *numbers, "to doubt"),
        rows=tuple(lines),
        numeric=frozenset({"batch per rank", *numbers}),
        notes=("others: processes that are not of this run; share of all cores. before: since the attempt before.",),
    )


def _files(results: Sequence[Result], files: Mapping[str, Files]) -> Table:
    return Table(
        title="Files",
        headers=("batch per rank", "folder"),
        rows=tuple(
            (_batch(result), files[result.attempt.slug].folder) for result in results if result.attempt.slug in files
        ),
        numeric=frozenset({"batch per rank"}),
        notes=_files_notes(results, files),
    )


def _files_notes(results: Sequence[Result], files: Mapping[str, Files]) -> tuple[str, ...]:
    if not any(result.isolation for result in results):
        return ()
    scripts = any(left.command for left in files.values())
    by_hand = "; sh command.sh runs the attempt again by hand" if scripts else ""
    return (f"result.json holds the raw samples of every rank{by_hand}.",)


SHOWN_COLLECTIVES = 10
VERBS = {"oom": "ran out of memory", "hang": "hung", "failed": "failed", "skipped": "was skipped"}


def _verbatim(results: Sequence[Result], files: Mapping[str, Files]) -> Iterator[Verbatim]:
    """The command, once where all attempts have the same, and the logs of what went wrong."""
    scripts: dict[str, list[str]] = {}
    for result in results:
        if (left := files.get(result.attempt.slug)) and left.command:
            scripts.setdefault(left.command, []).append(_batch(result))
    for script, batches in scripts.items():
        yield Verbatim(title=f"command.sh of batch {', '.join(batches)}", text=script)
    for result in results:
        if reason := row_of(result).reason:
            evidence = result.outcome.evidence if isinstance(result.outcome, Failed) else None
            cut = len(one_line(reason)) > REASON_LIMIT
            if text := "\n\n".join(part for part in (reason if cut else None, evidence) if part):
                yield Verbatim(title=f"Why batch {_batch(result)} {VERBS[result.outcome.kind]}", text=text)
        for one in result.outcome.stuck if isinstance(result.outcome, Hang) else ():
            newest = "\n".join(f"{made.number} {made}" for made in one.collectives[-SHOWN_COLLECTIVES:])
            text = f"{one.phase} {one.step}/{one.steps}\n\nnewest collectives:\n{newest or 'none'}\n\n{one.stacks}"
            yield Verbatim(title=f"Rank {one.rank} in the hang of batch {_batch(result)}", text=text)
        if result.outcome.kind in ("failed", "hang", "oom") and (left := files.get(result.attempt.slug)):
            for name, tail in left.log_tails.items():
                yield Verbatim(title=f"End of {name}, batch {_batch(result)}: {result.outcome.kind}", text=tail)


def _batch(result: Result) -> str:
    return f"{result.attempt.batch_per_rank}{' (few steps)' if result.attempt.short else ''}"


def _plain(text: str) -> str:
    """Without control characters: a log may hold any, and a terminal obeys them."""
    return "".join(char for char in text.expandtabs() if char.isprintable() or char == "\n")
