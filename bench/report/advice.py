"""What to train with: the fastest setting that leaves headroom, for each task, with its alternatives. Pure.

Where a cell was searched, its search answers for the batches that it could try: of these only its best and its safe
one are named. Of the batches that it left out, or that were measured after it, one may be faster: the sentence says so.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from bench.records.verdict import Goal, Probe, Verdict
from bench.report.contract import OBSERVED, key
from bench.report.doubts import doubted
from bench.report.rows import CellRows, Row, Sampled, Summary
from bench.report.speedup import SpeedUp
from bench.report.tables.attempts import REASON_LIMIT, caption, one_line, value_of
from bench.report.tables.searches import why
from bench.units import counted, percent, rate

CHOICES = frozenset({"backend", "attention", "grad_ckpt", "branch_sync", "compile", "fused", "find_unused_parameters"})
"""What one is free to choose for a task; everything else is the task itself."""
MAX_EVEN = 5


@dataclass(frozen=True, kw_only=True)
class Advice:
    """For one task."""

    task: str
    """What tells it from the other tasks of the run; empty when there is one."""
    headroom: float
    """Share of capacity that a recommended batch may hold."""
    chosen: Row | None
    """None when nothing was measured within the headroom. Of unknown memory only where every row of the task is."""
    alternatives: tuple[Row, ...]
    """The best of the other backends, and what is faster beyond the headroom or of unknown memory."""
    even: tuple[SpeedUp, ...] = ()
    """The chosen row against the best of each other setting whose difference from it may be noise."""
    left_out: tuple[str, ...] = ()
    """Of each backend that is not named, why: in words."""
    unsearched: Mapping[int, str] = field(default_factory=dict)
    """Why a search says nothing of a row, by the row's ``id``: a sentence."""
    ended: tuple[str, ...] = ()
    """How the searches ended, where nothing at all was measured in full."""
    remedy: str = ""
    """What to ask a search for when nothing is within the headroom."""


def advise(summary: Summary, probes: Sequence[Probe] = (), headrooms: Collection[float] = ()) -> list[Advice]:
    """For each task of the run, and each headroom that its searches were given. Rows that thrash, or that were measured
    in a few steps, are never chosen.

    Args:
        headrooms: all that the page answers for: of several, each answer names its own.
    """
    tasks: dict[str, list[CellRows]] = {}
    for cell in summary.cells:
        tasks.setdefault(key(cell.contract, without=CHOICES | OBSERVED), []).append(cell)
    columns = [name for name in summary.columns if name not in CHOICES and name != "cell"]
    searched = [
        [probe for probe in probes if probe.cell.id in {cell.cell.id for cell in cells}] for cells in tasks.values()
    ]
    of_tasks = [sorted({probe.goal.headroom for probe in own} or {Goal().headroom}) for own in searched]
    several = len(set(headrooms).union(*of_tasks)) > 1
    found = []
    for cells, own, of_task in zip(tasks.values(), searched, of_tasks, strict=True):
        for headroom in of_task:
            asked = [f"headroom {percent(headroom)}"] if several else []
            task = ", ".join([*(f"{caption(name)} {value_of(cells[0].rows[0], name)}" for name in columns), *asked])
            found.append(_advise(cells, [probe for probe in own if probe.goal.headroom == headroom], task, headroom))
    return [advice for advice in found if advice.chosen or advice.alternatives or advice.ended]


def _candidates(cell: CellRows, probes: Sequence[Probe]) -> list[Row]:
    """The rows that may be named, by what the searches of this cell say."""
    found = [(probe.goal, probe.found) for probe in probes if isinstance(probe.found, Verdict)]
    rows = [row for row in cell.sound if not row.short]
    return [row for row in rows if not found or any(_stands(row, *each) for each in found)]


def _stands(row: Row, goal: Goal, found: Verdict) -> bool:
    """Whether a search lets ``row`` be named. It knows what ran out and what thrashes; of its own batches it has named
    the fastest, so that a faster one was measured after it."""
    batch, held = row.batch_per_rank, _held(row)
    if batch in found.thrashing or (found.fails is not None and batch >= found.fails):
        return False
    if not (goal.tries(batch) and found.confirmed) or batch in _named(found):
        return True
    answer = found.safe if held is not None and held <= goal.headroom else found.best
    return answer is None or _rate(row) > answer.samples_per_s


def _named(found: Verdict) -> list[int]:
    return [answer.batch for answer in (found.best, found.safe) if answer]


def _unsearched(row: Row, probes: Sequence[Probe]) -> str | None:
    """Why the searches of its cell say nothing of a row that may be named."""
    found = [(probe.goal, probe.found) for probe in probes if isinstance(probe.found, Verdict)]
    if not any(goal.tries(row.batch_per_rank) for goal, _ in found):
        return f"The search left this batch out: it tries {found[0][0].candidates}." if found else None
    if all(verdict.confirmed and row.batch_per_rank not in _named(verdict) for _, verdict in found):
        return "It was measured after the search: search again."
    return None


def _advise(cells: Sequence[CellRows], probes: Sequence[Probe], task: str, headroom: float) -> Advice:
    searched = [[probe for probe in probes if probe.cell.id == cell.cell.id] for cell in cells]
    candidates = [_candidates(cell, own) for cell, own in zip(cells, searched, strict=True)]
    of_cell = {id(row): number for number, rows in enumerate(candidates) for row in rows}
    ranked = sorted((row for rows in candidates for row in rows), key=_rate, reverse=True)
    known = [(held, row) for row in ranked if (held := _held(row)) is not None]
    within = [row for held, row in known if held <= headroom] if known else ranked
    beyond = [row for held, row in known[:1] if held > headroom]
    unknown = [row for row in ranked if _held(row) is None] if known else []
    chosen = within[0] if within else None
    faster = [row for row in ranked if row in (*beyond, *unknown[:1]) and not (chosen and _rate(row) <= _rate(chosen))]
    by_backend: dict[str, Row] = {}
    by_cell: dict[int, Row] = {}
    for row in within:
        by_backend.setdefault(str(row.settings["backend"]), row)
        by_cell.setdefault(of_cell[id(row)], row)
    for row in unknown:
        by_backend.setdefault(str(row.settings["backend"]), row)
    against = [*beyond, *(row for row in by_cell.values() if row is not chosen)] if chosen else []
    pairs = [SpeedUp(reference=row, row=chosen, matched=False) for row in against] if chosen else []
    named = [str(row.settings["backend"]) for row in (*within, *beyond, *unknown)]
    backends = dict.fromkeys(cell.cell.backend for cell in cells)
    return Advice(
        task=task,
        headroom=headroom,
        chosen=chosen,
        alternatives=tuple({id(row): row for row in (*faster, *by_backend.values()) if row is not chosen}.values()),
        even=tuple(pair for pair in pairs if pair.even),
        left_out=tuple(_left_out(name, cells, probes) for name in backends if name not in named) if chosen else (),
        unsearched={id(row): words for row in ranked if (words := _unsearched(row, searched[of_cell[id(row)]]))},
        ended=() if ranked else tuple(dict.fromkeys(why(probe.found) for probe in probes)),
        remedy=probes[0].goal.remedy if probes else "",
    )


def sentences(summary: Summary, advice: Sequence[Advice]) -> list[str]:
    """What to train with, why, and what else there is."""
    doubts = doubted(summary)
    return [line for each in advice for line in _sentences(summary, each, doubts)]


def _sentences(summary: Summary, advice: Advice, doubts: frozenset[int]) -> Iterator[str]:
    task, headroom = f"For {advice.task}: " if advice.task else "", advice.headroom
    if advice.ended:
        yield f"{task}nothing to train with: {one_line('; '.join(advice.ended), REASON_LIMIT)}."
    elif advice.chosen is None:
        remedy = f": search with {advice.remedy}" if advice.remedy else ""
        yield f"{task}nothing was measured within {percent(headroom)} of capacity{remedy}."
    else:
        chosen, name = advice.chosen, _choice(summary, advice.chosen)
        figures = f"{rate(_rate(chosen))} samples/s, {_memory(chosen, headroom)} {_rests_on(chosen)}"
        yield f"{task}train with {name}: {figures}{_even(summary, advice.even)}{_but(advice, chosen, doubts)}"
    for row in advice.alternatives:
        beyond = (_held(row) or 0) > headroom
        even = any(pair.reference is row for pair in advice.even)
        faster = f"{'even' if even else 'faster'}, but beyond the headroom: " if beyond and advice.chosen else ""
        figures = f"{rate(_rate(row))} samples/s, {_memory(row, headroom)}{_but(advice, row, doubts)}"
        yield f"{task}or {faster}{_choice(summary, row)}: {figures}"
    for words in advice.left_out:
        yield f"{task}{words}"


def _left_out(backend: str, cells: Sequence[CellRows], probes: Sequence[Probe]) -> str:
    """A backend that failed everywhere, or was measured in a few steps, says nothing of its memory."""
    own = [cell for cell in cells if cell.cell.backend == backend]
    rows = [row for cell in own for row in cell.rows]
    if any(not row.short for cell in own for row in cell.sound):
        return f"{backend}: no batch within the headroom was measured."
    if ended := dict.fromkeys(why(probe.found) for probe in probes if probe.cell.backend == backend):
        return f"{backend}: nothing to train with: {one_line('; '.join(ended), REASON_LIMIT)}."
    if any(row.measured for row in rows):
        return f"{backend}: no batch was measured in full and without thrashing."
    return f"{backend}: nothing was measured: {', '.join(dict.fromkeys(row.outcome for row in rows))}."


def _even(summary: Summary, pairs: Sequence[SpeedUp]) -> str:
    """`` Even with ddp, batch 16 (1.01×, 0.83 to 1.24).``: of the chosen row's throughput by the other's."""
    named = []
    for pair in pairs[:MAX_EVEN]:
        assert pair.interval is not None
        low, high = pair.interval
        named.append(f"{_choice(summary, pair.reference)} ({pair.ratio:.2f}×, {low:.2f} to {high:.2f})")
    more = [f"{len(pairs) - MAX_EVEN} more"] if len(pairs) > MAX_EVEN else []
    return f" Even with {'; '.join([*named, *more])}." if pairs else ""


def _but(advice: Advice, row: Row, doubts: frozenset[int]) -> str:
    """What to know before taking a row at its word."""
    unsearched = advice.unsearched.get(id(row))
    return (f" {unsearched}" if unsearched else "") + (
        ' This row is doubted: see "Rows to doubt".' if id(row) in doubts else ""
    )


def _choice(summary: Summary, row: Row) -> str:
    """What was free to choose, where it differs within the run."""
    named = [f"{caption(name)} {value_of(row, name)}" for name in summary.columns if name in CHOICES - {"backend"}]
    return ", ".join([value_of(row, "backend"), *named, f"batch {row.batch_per_rank}"])


def _memory(row: Row, headroom: float) -> str:
    held = _held(row)
    if held is None:
        return "memory n/a: whether it is within the headroom is unknown."
    spare = f"{percent(1 - held)} of capacity to spare."
    return f"{percent(held)} of capacity held, {spare}" if held <= headroom else f"{percent(held)} of capacity held."


def _rests_on(row: Row) -> str:
    if not isinstance(row.measured, Sampled):
        return f"Rests on figures from elsewhere: {row.measured.source if row.measured else ''}."
    return f"Rests on {row.n_steps} measured steps of {counted(row.world_size, 'rank')}."


def _rate(row: Row) -> float:
    assert row.measured is not None
    return row.measured.samples_per_s_global


def _held(row: Row) -> float | None:
    return None if row.measured is None else row.measured.capacity_share_rank_max
