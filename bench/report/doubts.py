"""Rows that cannot be right, as sentences that name them."""

from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from statistics import median

from bench.report import conditions
from bench.report.contract import OBSERVED, RUN, key
from bench.report.rows import CellRows, Measured, Row, Sampled, Summary
from bench.report.tables.attempts import REASON_LIMIT, one_line, row_name
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
"""Fields that change how a step is computed, and not what it comes to."""


@dataclass(frozen=True)
class Doubt:
    """Why something cannot be right."""

    row: Row | None
    """None where it is about all of them."""
    words: str


def flags(summary: Summary) -> list[str]:
    """One sentence for each doubt; empty when there is none."""
    return [f"{row_name(summary, doubt.row)}: {doubt.words}" if doubt.row else doubt.words for doubt in doubts(summary)]


def doubted(summary: Summary) -> frozenset[int]:
    """The rows that are doubted, by ``id``: equal figures of two runs are two rows."""
    return frozenset(id(doubt.row) for doubt in doubts(summary) if doubt.row)


@lru_cache(maxsize=1)
def doubts(summary: Summary) -> tuple[Doubt, ...]:
    """All of them, cell by cell. Found once for all parts of a report."""
    found = [*_machines(summary), *_ways(summary), *_of_several_runs(summary)]
    for cell in summary.cells:
        found += _twice(cell)
        for row in cell.rows:
            if row.measured is not None and row.retried is not None:
                found.append(Doubt(row, f"second try; the first failed: {_cut(row.retried)}."))
            if row.measured is not None:
                found += [Doubt(row, words) for words in _of_figures(row.measured)]
            if row.conditions is not None:  # who shares a GPU may be why another ran out of memory
                found += [Doubt(row, words) for words in conditions.doubts(row.conditions)]
        found += _thrashing(cell)
        found += _shorter_steps(cell)
    return (*found, *_unlike_losses(summary))


def _twice(cell: CellRows) -> list[Doubt]:
    """Of one run alone, each batch of a cell is stored once."""
    batches = [row.batch_per_rank for row in cell.rows]
    words = "is in several of these runs, a row each: `bench compare` holds two runs against each other."
    return [Doubt(row, words) for row in cell.rows if batches.count(row.batch_per_rank) > 1]


def _of_several_runs(summary: Summary) -> list[Doubt]:
    """Cells that several runs hold, and what was measured in one where another had no room, or did not end well."""
    groups: dict[tuple[str, str], list[CellRows]] = {}
    for cell in summary.cells:
        if RUN in cell.contract:
            groups.setdefault((cell.cell.id, str(cell.rows[0].settings.get("machine"))), []).append(cell)
    shared = [cells for cells in groups.values() if len({str(cell.contract[RUN]) for cell in cells}) > 1]
    if not shared:
        return []
    found = []
    for cell, other in (pair for cells in shared for pair in permutations(cells, 2)):
        run = one_line(str(other.contract[RUN]))
        for row in (row for row in cell.rows if row.measured):
            lost = min(
                (lost for lost in other.rows if _lost(row, lost)), key=lambda lost: lost.batch_per_rank, default=None
            )
            if lost:
                found.append(Doubt(row, f"batch {lost.batch_per_rank} is {lost.outcome} in run {run}."))
    are = "is" if len(shared) == 1 else "are"
    words = (
        f"{counted(len(shared), 'cell')} {are} in several of these runs, and told apart by run:"
        " `bench compare` holds two runs against each other."
    )
    return [Doubt(None, words), *found]


def _lost(row: Row, other: Row) -> bool:
    """Whether ``other`` says that ``row`` could not have been measured: what runs out does so at larger batches too."""
    if other.outcome == "oom":
        return other.batch_per_rank <= row.batch_per_rank
    return other.outcome in ("failed", "hang") and other.batch_per_rank == row.batch_per_rank


def _ways(summary: Summary) -> list[Doubt]:
    """What may differ between like results: how they were launched, and the threads that each rank took."""
    found = []
    if len(summary.isolations) > 1:
        words = "Some attempts were forks of a rank server, and some launches of their own: their set-up differs."
        found.append(Doubt(None, words))
    threads: dict[tuple[str, int], set[int]] = {}
    for cell in summary.cells:
        for row in cell.rows:
            if isinstance(row.measured, Sampled):
                like = (str(cell.contract.get("cpu_cores")), row.world_size)
                threads.setdefault(like, set()).update(rank.threads for rank in row.measured.ranks)
    for (_, ranks), numbers in threads.items():
        if len(numbers) > 1:
            counts = ", ".join(map(str, sorted(numbers)))
            words = f"Results of {counted(ranks, 'rank')} ran with unlike numbers of CPU threads a rank: {counts}."
            found.append(Doubt(None, words))
    return found


def _machines(summary: Summary) -> list[Doubt]:
    return [
        Doubt(None, f"The results come from unlike machines: {_cut(difference)}.")
        for other in summary.machines[1:]
        for difference in summary.machines[0].unlike(other)
    ]


def _cut(text: str) -> str:
    return one_line(text, REASON_LIMIT)


def _of_figures(measured: Measured) -> list[str]:
    found = _of_ranks(measured) if isinstance(measured, Sampled) else _of_imported(measured)
    apart, times_s = measured.straggler_spread, measured.step_time_s_per_rank
    if apart is not None and apart > RANKS_APART:
        slowest, fastest = max(times_s), min(times_s)
        found.append(
            f"rank {times_s.index(slowest)}'s mean step ({ms(slowest)} ms) takes {percent(apart)}"
            f" longer than rank {times_s.index(fastest)}'s ({ms(fastest)} ms)."
        )
    return found + (_unsteady(measured) if isinstance(measured, Sampled) else [])


def _of_ranks(measured: Sampled) -> list[str]:
    found = []
    for rank in measured.ranks:
        found += _phases_miss(rank.unaccounted_share, f"rank {rank.rank}'s")
        allocated, reserved = rank.memory.peak_allocated_bytes, rank.memory.peak_reserved_bytes
        if allocated is not None and reserved is not None and reserved < allocated:
            found.append(
                f"rank {rank.rank} reserved {gib(reserved)} GiB, less than the {gib(allocated)} GiB it allocated."
            )
    return found


def _of_imported(measured: Measured) -> list[str]:
    """The same of imported figures: each of the two peaks is the worst rank's, so reserved is the larger one still."""
    found = _phases_miss(measured.phases.unaccounted_share, "its") if measured.phases else []
    allocated, reserved = measured.peak_allocated_bytes_rank_max, measured.peak_reserved_bytes_rank_max
    if allocated is not None and reserved is not None and reserved < allocated:
        found.append(f"its peak reserved is {gib(reserved)} GiB, less than the {gib(allocated)} GiB allocated.")
    return found


def _phases_miss(share: float | None, whose: str) -> list[str]:
    if share is None or abs(share) <= PHASES_MISS_TOTAL:
        return []
    return [f"{whose} phases sum to {percent(abs(share))} {'short of' if share > 0 else 'beyond'} their total."]


def _unsteady(measured: Sampled) -> list[str]:
    """Signs that the steps were disturbed, or that the warm-up was too short."""
    found = []
    step = measured.slowest.step
    above = step.mean_s / step.median_s - 1 if step.median_s else 0
    if above > MEAN_ABOVE_MEDIAN:
        found.append(
            f"rank {measured.slowest.rank}'s mean step ({ms(step.mean_s)} ms) is {percent(above)} above its median"
            f" ({ms(step.median_s)} ms): a busy machine, or too short a warm-up."
        )
    synchronised = measured.total_s
    if synchronised and abs(apart := synchronised / step.mean_s - 1) > WINDOWS_APART:
        found.append(
            f"its windows disagree by {percent(abs(apart))} ({ms(step.mean_s)} and {ms(synchronised)} ms a step):"
            " measure more steps."
        )
    if not measured.finite:
        found.append("the loss is not a finite number.")
    return found


def _thrashing(cell: CellRows) -> list[Doubt]:
    """Batches that fit and must not be recommended."""
    found = []
    for row in cell.rows:
        measured = row.measured
        if measured is None or row.batch_per_rank not in cell.thrashing:
            continue
        evidence = f"{percent(measured.capacity_share_rank_max)} of capacity at {rate(measured.samples_per_s_global)}"
        better = [other for other in cell.sound if other.batch_per_rank < row.batch_per_rank and other.measured]
        peak = max(better, key=_rate, default=None)
        instead = f"; batch {peak.batch_per_rank} does {rate(_rate(peak))}" if peak else ""
        retries = measured.alloc_retries if isinstance(measured, Sampled) else 0
        asked = f", {retries} allocation retries" if retries else ""
        found.append(Doubt(row, f"thrashing, {evidence} samples/s{asked}{instead}."))
    return found


def _unlike_losses(summary: Summary) -> list[Doubt]:
    """Backends that saw the same weights and samples, and whose losses are not those of the others."""
    groups: dict[str, list[Row]] = {}
    for cell in summary.cells:
        if cell.contract.get("attention_dropout"):
            continue  # drawn anew by every rank
        task = key(cell.contract, without=SAME_LOSS)
        for row in cell.rows:
            if isinstance(row.measured, Sampled):
                groups.setdefault(f"{task} {row.batch_global} {row.n_steps}", []).append(row)
    found = []
    for rows in groups.values():
        series = [row.measured.losses for row in rows if isinstance(row.measured, Sampled)]
        middle = [median(values) for values in zip(*series, strict=False)]
        for row, losses in zip(rows, series, strict=True):
            apart = [(abs(ours - theirs), abs(theirs)) for ours, theirs in zip(losses, middle, strict=False)]
            relative = median(gap / scale if scale else 0.0 for gap, scale in apart)
            if relative > LOSSES_APART and max(gap for gap, _ in apart) > LOSS_NOISE:
                words = (
                    f"its losses are {percent(relative)} off those of the others with the same weights and samples"
                    f" ({losses[0]:#.4g} against {middle[0]:#.4g} at the first step)."
                )
                found.append(Doubt(row, words))
    return found


def _rate(row: Row) -> float:
    return row.measured.samples_per_s_global if row.measured else 0.0


def _shorter_steps(cell: CellRows) -> list[Doubt]:
    """A larger batch whose step takes less time than that of a smaller batch of the same cell."""
    found = []
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
            found.append(Doubt(row, words))
    return found
