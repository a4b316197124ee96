"""Results that should not be trusted without a second look, and why. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from statistics import median

from bench.errors import one_line
from bench.records.outcome import KINDS
from bench.records.sources import named
from bench.report import conditions
from bench.report.contract import OBSERVED, RUN, contract_key
from bench.report.naming import short_reason
from bench.report.rows import CellRows, Measured, Row, RowId, Sampled, Summary
from bench.units import counted, gib, ms, percent, rate

PHASES_MISS_TOTAL = 0.02
STEP_SHORTER = 0.05
RANKS_APART = 0.10
WINDOWS_APART = 0.20
MEAN_ABOVE_MEDIAN = 0.15
LOSSES_APART, LOSS_NOISE = 0.02, 1e-3
SAME_LOSS = frozenset(
    {"backend", "num_processes", "attention", "grad_ckpt", "compile", "fused", "branch_sync", "find_unused_parameters"}
    | {"memory_limit_bytes", RUN, *OBSERVED}
)
"""Fields that change how a step is computed, and not its result."""


@dataclass(frozen=True)
class Doubt:
    """One reason not to trust a result as it is."""

    row: Row | None
    """None where it concerns all rows."""
    reason: str
    """A sentence without its subject where there is a row."""


def doubted_rows(summary: Summary) -> frozenset[RowId]:
    return frozenset(doubt.row.id for doubt in doubts(summary) if doubt.row)


@lru_cache(maxsize=1)
def doubts(summary: Summary) -> tuple[Doubt, ...]:
    """All doubts, cell by cell. Computed once for all parts of a report."""
    return tuple(_doubts(summary))


def _doubts(summary: Summary) -> Iterator[Doubt]:
    yield from _unlike_machines(summary)
    yield from _unlike_launches(summary)
    yield from _between_runs(summary)
    for cell in summary.cells:
        yield from _repeated(cell)
        for row in cell.rows:
            if row.stale:
                words = (
                    f"made by other sources than the newest result of its workload: {short_reason(named(row.stale))}."
                )
                yield Doubt(row, words)
            if row.measured is not None and row.retried is not None:
                yield Doubt(row, f"second try; the first failed: {short_reason(row.retried)}.")
            if row.measured is not None:
                yield from (Doubt(row, reason) for reason in _of_figures(row.measured))
            if row.conditions is not None:  # of any outcome: another process on the GPU may explain an oom
                yield from (Doubt(row, reason) for reason in conditions.disturbances(row.conditions))
        yield from _thrashing(cell)
        yield from _shorter_steps(cell)
    yield from _unlike_losses(summary)


def _repeated(cell: CellRows) -> list[Doubt]:
    """A batch of a cell that has several rows: one run stores each batch once."""
    batches = [row.batch_per_rank for row in cell.rows]
    words = "is in more than one of these runs, with a row for each: `bench compare` compares two runs."
    return [Doubt(row, words) for row in cell.rows if batches.count(row.batch_per_rank) > 1]


def _between_runs(summary: Summary) -> Iterator[Doubt]:
    """Cells that more than one run holds, and rows that were measured although another run failed there."""
    groups: dict[tuple[str, str], list[CellRows]] = {}
    for cell in summary.cells:
        if RUN in cell.contract:
            groups.setdefault((cell.cell.id, str(cell.rows[0].settings.get("machine"))), []).append(cell)
    shared = [cells for cells in groups.values() if len({str(cell.contract[RUN]) for cell in cells}) > 1]
    if not shared:
        return
    are = "is" if len(shared) == 1 else "are"
    yield Doubt(
        None,
        f"{counted(len(shared), 'cell')} {are} in more than one of these runs, with the run as a column:"
        " `bench compare` compares two runs.",
    )
    for cell, other in (pair for cells in shared for pair in permutations(cells, 2)):
        run = one_line(str(other.contract[RUN]))
        for row in (row for row in cell.rows if row.measured):
            against = [failure for failure in other.rows if _contradicts(row, failure)]
            if failure := min(against, key=lambda failure: failure.batch_per_rank, default=None):
                yield Doubt(row, f"batch {failure.batch_per_rank} is {failure.outcome} in run {run}.")


def _contradicts(row: Row, failure: Row) -> bool:
    """Whether ``row`` should have failed like ``failure``: what runs out of memory does so at larger batches, too."""
    if failure.outcome == "oom":
        return failure.batch_per_rank <= row.batch_per_rank
    return KINDS[failure.outcome].explained_by_logs and failure.batch_per_rank == row.batch_per_rank


def _unlike_launches(summary: Summary) -> Iterator[Doubt]:
    """Results that are otherwise alike, but were launched in different ways or used different numbers of threads."""
    if len(summary.isolations) > 1:
        words = "Some attempts were forks of a rank server, and others had a launch of their own: their setup differs."
        yield Doubt(None, words)
    threads: dict[tuple[str, int], set[int]] = {}
    for cell in summary.cells:
        for row in cell.rows:
            if isinstance(row.measured, Sampled):
                like = (str(cell.contract.get("cpu_cores")), row.world_size)
                threads.setdefault(like, set()).update(rank.threads for rank in row.measured.ranks)
    for (_, ranks), numbers in threads.items():
        if len(numbers) > 1:
            counts = ", ".join(map(str, sorted(numbers)))
            words = f"Results of {counted(ranks, 'rank')} used different numbers of CPU threads a rank: {counts}."
            yield Doubt(None, words)


def _unlike_machines(summary: Summary) -> list[Doubt]:
    pairs = [(summary.machines[0], other) for other in summary.machines[1:]]
    unlike = dict.fromkeys(difference for one, other in pairs for difference in one.unlike(other))
    software = dict.fromkeys(difference for one, other in pairs for difference in one.differences(other))
    return [
        *(Doubt(None, f"The results come from unlike machines: {short_reason(difference)}.") for difference in unlike),
        *(
            Doubt(None, f"The results differ in their environment: {short_reason(difference)}.")
            for difference in software
        ),
    ]


def _of_figures(measured: Measured) -> Iterator[str]:
    yield from _of_ranks(measured) if isinstance(measured, Sampled) else _of_imported(measured)
    apart, times_s = measured.straggler_spread, measured.step_time_s_per_rank
    if apart is not None and apart > RANKS_APART:
        slowest, fastest = max(times_s), min(times_s)
        yield (
            f"rank {times_s.index(slowest)}'s mean step ({ms(slowest)} ms) takes {percent(apart)}"
            f" longer than rank {times_s.index(fastest)}'s ({ms(fastest)} ms)."
        )
    if isinstance(measured, Sampled):
        yield from _unsteady(measured)


def _of_ranks(measured: Sampled) -> Iterator[str]:
    for rank in measured.ranks:
        yield from _phases_miss(rank.unaccounted_share, f"rank {rank.rank}'s")
        allocated, reserved = rank.memory.peak_allocated_bytes, rank.memory.peak_reserved_bytes
        if allocated is not None and reserved is not None and reserved < allocated:
            yield f"rank {rank.rank} reserved {gib(reserved)} GiB, less than the {gib(allocated)} GiB it allocated."


def _of_imported(measured: Measured) -> Iterator[str]:
    """Imported figures. Each of the two peaks is the worst rank's, so reserved is still the larger one."""
    if measured.phases:
        yield from _phases_miss(measured.phases.unaccounted_share, "its")
    allocated, reserved = measured.peak_allocated_bytes_rank_max, measured.peak_reserved_bytes_rank_max
    if allocated is not None and reserved is not None and reserved < allocated:
        yield f"its peak reserved is {gib(reserved)} GiB, less than the {gib(allocated)} GiB allocated."


def _phases_miss(share: float | None, whose: str) -> Iterator[str]:
    if share is not None and abs(share) > PHASES_MISS_TOTAL:
        yield f"{whose} phases sum to {percent(abs(share))} {'short of' if share > 0 else 'beyond'} their total."


def _unsteady(measured: Sampled) -> Iterator[str]:
    """Signs of disturbed steps, or of a warm-up that was too short."""
    step = measured.slowest.step
    above = step.mean_s / step.median_s - 1 if step.median_s else 0
    if above > MEAN_ABOVE_MEDIAN:
        yield (
            f"rank {measured.slowest.rank}'s mean step ({ms(step.mean_s)} ms) is {percent(above)} above its median"
            f" ({ms(step.median_s)} ms): a busy machine, or too short a warm-up."
        )
    synchronised_s = measured.total_s
    if synchronised_s and abs(apart := synchronised_s / step.mean_s - 1) > WINDOWS_APART:
        yield (
            f"its two timing windows disagree by {percent(abs(apart))}"
            f" ({ms(step.mean_s)} and {ms(synchronised_s)} ms a step): measure more steps."
        )
    if not measured.finite:
        yield "the loss is not a finite number."


def _thrashing(cell: CellRows) -> Iterator[Doubt]:
    """Batches that fit, but must not be recommended."""
    for row in cell.rows:
        measured = row.measured
        if measured is None or not cell.thrashes(row):
            continue
        evidence = f"{percent(measured.capacity_share_rank_max)} of capacity at {rate(measured.samples_per_s_global)}"
        smaller = [other for other in cell.sound if other.batch_per_rank < row.batch_per_rank]
        peak = max(smaller, key=lambda row: row.rate, default=None)
        instead = f"; batch {peak.batch_per_rank} reaches {rate(peak.rate)}" if peak else ""
        retries = measured.alloc_retries if isinstance(measured, Sampled) else 0
        retried = f", {retries} allocation {'retry' if retries == 1 else 'retries'}" if retries else ""
        yield Doubt(row, f"thrashing, {evidence} samples/s{retried}{instead}.")


def _unlike_losses(summary: Summary) -> Iterator[Doubt]:
    """Rows whose losses differ from those of other backends with the same weights and samples."""
    groups: dict[str, list[Row]] = {}
    for cell in summary.cells:
        if cell.contract.get("attention_dropout"):
            continue  # every rank draws its own
        task = contract_key(cell.contract, without=SAME_LOSS)
        for row in cell.rows:
            if isinstance(row.measured, Sampled):
                groups.setdefault(f"{task} {row.batch_global} {row.n_steps}", []).append(row)
    for rows in groups.values():
        series = [row.measured.losses for row in rows if isinstance(row.measured, Sampled)]
        middle = [median(values) for values in zip(*series, strict=False)]
        for row, losses in zip(rows, series, strict=True):
            apart = [(abs(ours - theirs), abs(theirs)) for ours, theirs in zip(losses, middle, strict=False)]
            relative = median(gap / scale if scale else 0.0 for gap, scale in apart)
            if relative > LOSSES_APART and max(gap for gap, _ in apart) > LOSS_NOISE:
                words = (
                    f"its losses differ by {percent(relative)} from those of rows with the same weights and samples"
                    f" ({losses[0]:#.4g} against {middle[0]:#.4g} at the first step)."
                )
                yield Doubt(row, words)


def _shorter_steps(cell: CellRows) -> Iterator[Doubt]:
    """Rows whose step is shorter than that of a smaller batch of the same cell."""
    measured = [
        (row, step_s) for row in cell.rows if row.measured and (step_s := row.measured.step_time_s_rank_max) is not None
    ]
    for index, (row, step_s) in enumerate(measured):
        smaller, smaller_s = max(measured[: index + 1], key=lambda pair: pair[1])
        shorter = 1 - step_s / smaller_s
        if shorter > STEP_SHORTER and smaller.batch_per_rank < row.batch_per_rank:
            words = (
                f"its step ({ms(step_s)} ms) is {percent(shorter)} shorter than that of batch"
                f" {smaller.batch_per_rank} ({ms(smaller_s)} ms)."
            )
            yield Doubt(row, words)
