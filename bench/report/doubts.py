"""Results that should not be trusted without a second look, and why. Pure.

`DOUBT_KINDS`, at the end, lists every kind of doubt with its grade. To add one, add an entry.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import permutations
from statistics import median
from typing import Literal, TypeVar, get_args

from bench.errors import one_line
from bench.records.cell import COST_SETTINGS
from bench.records.figures import ALLOC_RETRIES, CAPACITY_SHARE
from bench.records.observed import by_rank, other_batch, other_steps
from bench.records.outcome import KINDS
from bench.records.sources import named
from bench.report import implausible
from bench.report.controlled import RUN, SEEN_WHEN_MEASURED, controlled_key
from bench.report.naming import isolation_in_words, short_reason
from bench.report.rows import CellRows, Measured, Row, RowId, Sampled, Summary
from bench.units import counted, ms, percent, rate

STEP_SHORTER = 0.05
LOSSES_APART = 0.02
LOSSES_FAR_APART = 0.25
"""Of rows whose weights were rounded otherwise: large updates make a difference in the last bits grow."""
SAME_LOSS = frozenset({"backend", "num_processes", "num_nodes", "memory_limit_bytes", "allow_unused"}).union(
    COST_SETTINGS, SEEN_WHEN_MEASURED, [RUN]
)
"""Fields that change no loss, beside those of the workload: `Summary.cost_options`."""


Part = TypeVar("Part")
"""Of a launch."""
Grade = Literal["invalid", "inaccurate", "note"]
"""The worst first.

invalid     the figures are wrong, or those of something else
inaccurate  the figures may be off
note    for your information; the figures stand
"""
Reason = str | implausible.Sized
"""A sentence; of some kinds, with a bound of what the doubt changes."""
Found = Iterable[tuple["Row | None", Reason]]
"""Rows and reasons of one kind of doubt."""


@dataclass(frozen=True)
class Kind:
    """A kind of doubt."""

    grade: Grade
    find: Callable[[Summary], Found]


@dataclass(frozen=True)
class Doubt:
    """One reason not to trust a result as it is."""

    row: Row | None
    """None where it concerns all rows."""
    reason: str
    """A sentence without its subject where there is a row."""
    grade: Grade
    share: float
    """By how much the mean step of the row may be off at most; infinite where that is unknown."""


def causes(summary: Summary) -> dict[RowId, str]:
    """Why each row of `may_be_off` is doubted first."""
    first: dict[RowId, str] = {}
    for doubt in doubts(summary):
        if doubt.row and doubt.grade != "note":
            first.setdefault(doubt.row.id, doubt.reason)
    return first


def may_be_off(summary: Summary) -> dict[RowId, float]:
    """The rows that other tables mark, because a doubt makes their figures invalid or inaccurate, and by which share
    the mean step of each may be off at most; infinite where that is unknown."""
    off: dict[RowId, float] = {}
    for doubt in doubts(summary):
        if doubt.row and doubt.grade != "note":
            off[doubt.row.id] = (1 + off.get(doubt.row.id, 0.0)) * (1 + doubt.share) - 1
    return off


def spoiled_rows(summary: Summary) -> frozenset[RowId]:
    """The rows whose figures are wrong, or those of something else. Nothing is decided by them."""
    spoils = (kind for kind in DOUBT_KINDS if kind.grade == "invalid")
    return frozenset(row.id for kind in spoils for row, _ in kind.find(summary) if row)


@lru_cache(maxsize=1)
def doubts(summary: Summary) -> tuple[Doubt, ...]:
    """All doubts, by grade, then row by row. Computed once for all parts of a report."""
    grades, place = get_args(Grade), {row.id: number for number, row in enumerate(summary.rows)}
    found = []
    for kind in DOUBT_KINDS:
        for row, reason in kind.find(summary):
            words, share = reason if isinstance(reason, implausible.Sized) else (reason, math.inf)
            found.append(Doubt(row, words, kind.grade, share))
    return tuple(sorted(found, key=lambda doubt: (grades.index(doubt.grade), place[doubt.row.id] if doubt.row else -1)))


def _each_cell(find: Callable[[CellRows], Found]) -> Callable[[Summary], Found]:
    return lambda summary: (found for cell in summary.cells for found in find(cell))


def _each_row(find: Callable[[Row], Iterable[Reason]]) -> Callable[[Summary], Found]:
    return lambda summary: ((row, reason) for row in summary.rows for reason in find(row))


def _each_measured(find: Callable[[Measured], Iterable[Reason]]) -> Callable[[Summary], Found]:
    return _each_row(lambda row: find(row.measured) if row.measured else ())


def _each_sampled(find: Callable[[Sampled], Iterable[Reason]]) -> Callable[[Summary], Found]:
    return _each_row(lambda row: find(row.sampled) if row.sampled else ())


def _repeated(cell: CellRows) -> Found:
    """A batch of a cell that has several rows: one run stores each batch once."""
    batches = [row.batch_per_rank for row in cell.rows]
    words = "is in more than one of these runs, with a row for each: `bench compare` compares two runs."
    return [(row, words) for row in cell.rows if batches.count(row.batch_per_rank) > 1]


def _left_out(cell: CellRows, *, much: bool) -> Found:
    """Rows of a model that is not all trained or run; too ``much`` of it, unless the cell allows that."""
    for row in cell.rows:
        if row.sampled:
            invalid = implausible.leaves_out_much(row.sampled) and not cell.cell.train.allow_unused
            accept = " If that is meant, set train.allow_unused: true." if invalid else ""
            yield from ((row, reason + accept) for reason in implausible.left_out(row.sampled) if invalid == much)


def _otherwise(cell: CellRows, *, batch: bool) -> Found:
    """Rows of a script that did other steps than the matrix says: other samples, or the same in another way."""
    for row in cell.rows:
        samples, told = cell.cell.rank_samples_per_step(row.batch_per_rank), dict[int, Iterator[str]]()
        otherwise = other_batch if batch else other_steps
        for rank in row.ranks:
            if (seen := rank.raw.observed) is not None:
                told[rank.raw.rank] = otherwise(seen, len(rank.raw.step_times_s), row.batch_per_rank, samples)
        yield from ((row, f"{words}; its figures count what was seen.") for words in by_rank(told))


def _second_try(row: Row) -> Iterator[str]:
    for retried in dict.fromkeys(launch.retried for launch in row.each if launch.measured and launch.retried):
        yield f"second try; the first failed: {short_reason(retried).rstrip('.')}."


def _stale(row: Row) -> Iterator[str]:
    if row.stale:
        yield f"made by other sources than the newest of its workload: {short_reason(named(row.stale))}."


def _failed_launches(row: Row) -> Iterator[str]:
    if row.failures:
        yield f"{short_reason(row.reason).rstrip('.')}."


def _in_several_runs(summary: Summary) -> Found:
    if shared := _shared(summary):
        are = "is" if len(shared) == 1 else "are"
        yield (
            None,
            f"{counted(len(shared), 'cell')} {are} in more than one of these runs, with the run as a column:"
            " `bench compare` compares two runs.",
        )


def _contradicted(summary: Summary) -> Found:
    """Rows that were measured although another run failed there."""
    for cell, other in (pair for cells in _shared(summary) for pair in permutations(cells, 2)):
        run = one_line(str(other.controlled[RUN]))
        for row in (row for row in cell.rows if row.measured):
            against = [failure for failure in other.rows if _contradicts(row, failure)]
            if failure := min(against, key=lambda failure: failure.batch_per_rank, default=None):
                yield row, f"batch {failure.batch_per_rank} is {failure.outcome} in run {run}."


def _shared(summary: Summary) -> list[list[CellRows]]:
    """Cells that more than one run holds."""
    groups: dict[tuple[str, str], list[CellRows]] = {}
    for cell in summary.cells:
        if RUN in cell.controlled:
            groups.setdefault((cell.cell.id, str(cell.rows[0].settings.get("machine"))), []).append(cell)
    return [cells for cells in groups.values() if len({str(cell.controlled[RUN]) for cell in cells}) > 1]


def _contradicts(row: Row, failure: Row) -> bool:
    """Whether ``row`` should have failed like ``failure``: what runs out of memory does so at larger batches, too."""
    if failure.outcome == "oom":
        return failure.batch_per_rank <= row.batch_per_rank
    return KINDS[failure.outcome].explained_by_logs and failure.batch_per_rank == row.batch_per_rank


def _unlike_launches(summary: Summary) -> Found:
    """Results that are otherwise alike, but were launched in different ways or used different numbers of threads."""
    if len(summary.isolations) > 1:
        ways = "; or ".join(map(isolation_in_words, summary.isolations))
        yield None, f"Attempts ran in unlike processes, so their setup differs: {ways}."
    threads: dict[tuple[str, int], set[int]] = {}
    for cell in summary.cells:
        for row in cell.rows:
            like = (str(cell.controlled.get("cpu_cores")), row.world_size)
            threads.setdefault(like, set()).update(rank.raw.threads for rank in row.ranks)
    for (_, ranks), numbers in threads.items():
        if len(numbers) > 1:
            counts = ", ".join(map(str, sorted(numbers)))
            words = f"Results of {counted(ranks, 'rank')} used different numbers of CPU threads a rank: {counts}."
            yield None, words


def _unlike_machines(summary: Summary) -> Found:
    pairs = [(summary.machines[0], other) for other in summary.machines[1:]]
    for difference in dict.fromkeys(difference for one, other in pairs for difference in one.unlike(other)):
        yield None, f"The results come from unlike machines: {short_reason(difference)}."
    for difference in dict.fromkeys(difference for one, other in pairs for difference in one.differences(other)):
        yield None, f"The results differ in their environment: {short_reason(difference)}."


def _each_launch(find: Callable[[Part], Iterable[str]], of: Callable[[Row], Part | None]) -> Callable[[Summary], Found]:
    """Of each launch: what the row has of one of them is that of the median launch."""

    def of_row(row: Row) -> Iterator[implausible.Sized]:
        parts = [(launch, of(launch)) for launch in row.each]
        told = [(launch, list(find(part))) for launch, part in parts if part is not None]
        share = implausible.moved_by(row, [launch for launch, reasons in told if reasons])
        sentences = (implausible.of_launch(row, launch) + reason for launch, reasons in told for reason in reasons)
        return implausible.together(sentences, share)

    return _each_row(of_row)


def _thrashing(cell: CellRows) -> Found:
    """Batches that fit, but must not be recommended."""
    for row in cell.rows:
        measured = row.measured
        if measured is None or not cell.thrashes(row):
            continue
        evidence = f"{percent(measured.of(CAPACITY_SHARE))} of capacity at {rate(measured.samples_per_s_global)}"
        smaller = [other for other in cell.sound if other.batch_per_rank < row.batch_per_rank]
        peak = max(smaller, key=lambda row: row.rate, default=None)
        instead = f"; batch {peak.batch_per_rank} reaches {rate(peak.rate)}" if peak else ""
        retries = measured.of(ALLOC_RETRIES) or 0
        retried = f", {retries} allocation {'retry' if retries == 1 else 'retries'}" if retries else ""
        yield row, f"thrashing, {evidence} samples/s{retried}{instead}."


def _unlike_losses(summary: Summary, *, rounded: bool) -> Found:
    """Rows whose losses differ from those of other backends with the same weights and samples.

    Args:
        rounded: those that differ no more than rows may whose weights are held in other dtypes. DeepSpeed, and
            `train.weights: bf16`, round weights before the optimizer copies them.
    """
    groups: dict[str, list[Row]] = {}
    for cell in summary.cells:
        if any(value for name, value in cell.cell.options.items() if name.endswith("dropout")):
            continue  # every rank draws its own
        task = controlled_key(cell.controlled, without=SAME_LOSS | summary.cost_options)
        for row in cell.rows:
            if row.sampled and row.sampled.losses and all(map(math.isfinite, row.sampled.losses)):
                groups.setdefault(f"{task} {row.batch_global} {row.n_steps}", []).append(row)
    for rows in groups.values():
        held: dict[str, list[Row]] = {}
        for row in rows:
            held.setdefault(row.ranks[0].raw.regime.weights_dtype, []).append(row)
        apart = list(_losses_apart(rows))
        of_kind = {row.id for alike in held.values() for row, _, _ in _losses_apart(alike)}
        wrong = {row.id for row, relative, _ in apart if row.id in of_kind or relative > LOSSES_FAR_APART}
        for row, _, words in apart:
            if (row.id not in wrong) == rounded:
                yield (
                    row,
                    f"{words}{' Their weights are held in other dtypes, so rounded otherwise.' if rounded else ''}",
                )


def _unlike_models(summary: Summary) -> Found:
    """Rows of more or fewer parameters than others of the same model, as where tied weights come apart."""
    groups: dict[str, list[tuple[Row, int]]] = {}
    for cell in summary.cells:
        task = controlled_key(cell.controlled, without=SAME_LOSS | summary.cost_options)
        for row in cell.rows:
            if row.ranks:
                groups.setdefault(task, []).append((row, row.ranks[0].raw.regime.parameters))
    for sized in groups.values():
        usual = Counter(number for _, number in sized).most_common(1)[0][0]
        others = [(row, number) for row, number in sized if number != usual]
        for row, number in others:
            yield row, f"its model has {number:,} parameters, and that of other rows with the same settings {usual:,}."


def _losses_apart(rows: Sequence[Row]) -> Iterator[tuple[Row, float, str]]:
    """Of rows that should have like losses: those that have not, by which share they differ, and a sentence. Where the
    first step differs by `LOSSES_APART`, rounding is no reason, and the share is infinite."""
    series = [row.sampled.losses for row in rows if row.sampled]
    middle = [median(values) for values in zip(*series, strict=False)]
    others = series[::-1] if len(series) == 2 else [middle] * len(series)
    for row, losses, other in zip(rows, series, others, strict=True):
        apart = [(abs(ours - theirs), abs(theirs)) for ours, theirs in zip(losses, other, strict=False)]
        relative = [gap / scale if scale else 0.0 for gap, scale in apart]
        if median(relative) > LOSSES_APART and max(gap for gap, _ in apart) > implausible.LOSS_NOISE:
            words = (
                f"its losses differ by {percent(median(relative))} from those of rows with the same weights and samples"
                f" ({losses[0]:#.4g} against {other[0]:#.4g} at the first step)."
            )
            yield row, math.inf if relative[0] > LOSSES_APART else median(relative), words


def _shorter_steps(cell: CellRows) -> Found:
    """Rows whose step is shorter than that of fewer samples of the same cell. At a `global_batch`, all have as many."""
    measured = [
        (row, step_s) for row in cell.rows if row.measured and (step_s := row.measured.step_time_s_rank_max) is not None
    ]
    for index, (row, step_s) in enumerate(measured):
        smaller, smaller_s = max(measured[: index + 1], key=lambda pair: pair[1])
        shorter = 1 - step_s / smaller_s
        if shorter > STEP_SHORTER and smaller.batch_global < row.batch_global:
            words = (
                f"its step ({ms(step_s)} ms) is {percent(shorter)} shorter than that of batch"
                f" {smaller.batch_per_rank} ({ms(smaller_s)} ms), which has less to do."
            )
            yield row, implausible.Sized(words, smaller_s / step_s - 1)


DOUBT_KINDS: tuple[Kind, ...] = (
    Kind("invalid", partial(_unlike_losses, rounded=False)),
    Kind("invalid", _each_launch(implausible.loss_not_finite, lambda launch: launch.sampled)),
    Kind("invalid", _each_row(partial(implausible.skipped_steps, every=True))),
    Kind("invalid", _each_measured(implausible.reserved_below_allocated)),
    Kind("invalid", _each_cell(partial(_left_out, much=True))),
    Kind("inaccurate", _unlike_models),
    Kind("inaccurate", _unlike_machines),
    Kind("inaccurate", _unlike_launches),
    Kind("inaccurate", _contradicted),
    # The first doubt of a row is the "Caution" of the answer: what a user can remove comes before what shows it.
    Kind("inaccurate", _each_cell(_thrashing)),
    Kind("inaccurate", _each_launch(implausible.compiled_meanwhile, lambda launch: launch.sampled)),
    # Of rows with any outcome: another process on the GPU may explain an oom.
    Kind("inaccurate", _each_launch(implausible.disturbances, lambda launch: launch.conditions)),
    Kind("inaccurate", _each_row(implausible.straggler)),
    Kind("inaccurate", _each_measured(implausible.starved)),
    Kind("inaccurate", _each_row(partial(implausible.skipped_steps, every=False))),
    Kind("inaccurate", _each_cell(partial(_otherwise, batch=True))),
    Kind("inaccurate", _each_row(_stale)),
    Kind("inaccurate", _each_row(_failed_launches)),
    Kind("inaccurate", _each_cell(_shorter_steps)),
    Kind("inaccurate", _each_measured(implausible.phases_miss)),
    Kind("inaccurate", _each_measured(implausible.ranks_apart)),
    Kind("inaccurate", _each_row(implausible.mean_above_median)),
    Kind("inaccurate", _each_sampled(implausible.windows_disagree)),
    Kind("note", partial(_unlike_losses, rounded=True)),
    Kind("note", _in_several_runs),
    Kind("note", _each_cell(_repeated)),
    Kind("note", _each_cell(partial(_left_out, much=False))),
    Kind("note", _each_sampled(implausible.not_routed)),
    Kind("note", _each_sampled(implausible.dropped_keys)),
    Kind("note", _each_sampled(implausible.reduced_products)),
    Kind("note", _each_sampled(implausible.may_be_late)),
    Kind("note", _each_sampled(implausible.not_resumed)),
    Kind("note", _each_row(implausible.still_growing)),
    Kind("note", _each_cell(partial(_otherwise, batch=False))),
    Kind("note", _each_row(_second_try)),
    Kind("note", _each_launch(implausible.short_of_disk, lambda launch: launch.conditions)),
)
"""All kinds of doubt."""
