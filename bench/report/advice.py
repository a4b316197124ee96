"""What to train with: the fastest setting that leaves headroom, for each task, with its alternatives. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.report.comparison import SpeedUp
from bench.report.contract import key
from bench.report.flags import doubted
from bench.report.rows import CellRows, Row, Sampled, Summary
from bench.report.tables import caption, value_of
from bench.search import Goal
from bench.units import counted, percent, rate

CHOICES = frozenset({"backend", "attention", "grad_ckpt", "branch_sync", "compile", "fused", "find_unused_parameters"})
"""What one is free to choose for a task; everything else is the task itself."""
OF_THE_RUN = frozenset({"masters_dtype", "optimizer_dtype"})
MAX_EVEN = 5


@dataclass(frozen=True, kw_only=True)
class Advice:
    """For one task."""

    task: str
    """What tells it from the other tasks of the run; empty when there is one."""
    chosen: Row | None
    """None when nothing was measured within the headroom."""
    alternatives: tuple[Row, ...]
    """The best of the other backends, and what is faster beyond the headroom."""
    even: tuple[SpeedUp, ...] = ()
    """The chosen row against the best of each other setting whose difference from it may be noise."""
    left_out: tuple[str, ...] = ()
    """Backends of which no batch within the headroom was measured."""


def advise(summary: Summary, headroom: float = Goal().headroom) -> list[Advice]:
    """For each task of the run. Rows that thrash, or that were measured in a few steps, are never chosen.

    Args:
        headroom: share of capacity that a recommended batch may hold.
    """
    tasks: dict[str, list[CellRows]] = {}
    for cell in summary.cells:
        tasks.setdefault(key(cell.contract, without=CHOICES | OF_THE_RUN), []).append(cell)
    columns = [name for name in summary.columns if name not in CHOICES and name != "cell"]
    return [_advise(cells, columns, headroom) for cells in tasks.values() if any(map(_candidates, cells))]


def _candidates(cell: CellRows) -> list[Row]:
    return [row for row in cell.sound if not row.short]


def _advise(cells: Sequence[CellRows], columns: Sequence[str], headroom: float) -> Advice:
    of_cell = {id(row): id(cell) for cell in cells for row in _candidates(cell)}
    ranked = sorted((row for cell in cells for row in _candidates(cell)), key=_rate, reverse=True)
    within = [row for row in ranked if (_held(row) or 0) <= headroom]
    beyond = [row for row in ranked[:1] if row not in within]
    by_backend: dict[str, Row] = {}
    by_cell: dict[int, Row] = {}
    for row in within:
        by_backend.setdefault(str(row.settings["backend"]), row)
        by_cell.setdefault(of_cell[id(row)], row)
    chosen = within[0] if within else None
    against = [*beyond, *(row for row in by_cell.values() if row is not chosen)] if chosen else []
    pairs = [SpeedUp(reference=row, row=chosen, matched=False) for row in against] if chosen else []
    named = [str(row.settings["backend"]) for row in (*within, *beyond)]
    backends = dict.fromkeys(cell.cell.backend for cell in cells)
    return Advice(
        task=", ".join(f"{caption(name)} {value_of(ranked[0], name)}" for name in columns),
        chosen=chosen,
        alternatives=(*beyond, *(row for row in by_backend.values() if row is not chosen)),
        even=tuple(pair for pair in pairs if pair.even),
        left_out=tuple(name for name in backends if name not in named) if chosen else (),
    )


def sentences(summary: Summary, advice: Sequence[Advice], headroom: float = Goal().headroom) -> list[str]:
    """What to train with, why, and what else there is."""
    doubts = doubted(summary)
    return [line for each in advice for line in _sentences(summary, each, headroom, doubts)]


def _sentences(summary: Summary, advice: Advice, headroom: float, doubts: frozenset[int]) -> Iterator[str]:
    task = f"For {advice.task}: " if advice.task else ""
    if advice.chosen is None:
        yield f"{task}nothing was measured within {percent(headroom)} of capacity."
    else:
        chosen, name = advice.chosen, _choice(summary, advice.chosen)
        figures = f"{rate(_rate(chosen))} samples/s, {_memory(chosen, headroom)} {_rests_on(chosen)}"
        yield f"{task}train with {name}: {figures}{_even(summary, advice.even)}{_doubt(chosen, doubts)}"
    for row in advice.alternatives:
        beyond = (_held(row) or 0) > headroom
        why = "faster, but beyond the headroom: " if beyond and advice.chosen else ""
        figures = f"{rate(_rate(row))} samples/s, {_memory(row, headroom)}{_doubt(row, doubts)}"
        yield f"{task}or {why}{_choice(summary, row)}: {figures}"
    if advice.left_out:
        yield f"{task}{', '.join(advice.left_out)}: no batch within the headroom was measured."


def _even(summary: Summary, pairs: Sequence[SpeedUp]) -> str:
    """`` Even with ddp, batch 16 (1.01×, 0.83 to 1.24).``: of the chosen row's throughput by the other's."""
    named = []
    for pair in pairs[:MAX_EVEN]:
        assert pair.interval is not None
        low, high = pair.interval
        named.append(f"{_choice(summary, pair.reference)} ({pair.ratio:.2f}×, {low:.2f} to {high:.2f})")
    more = [f"{len(pairs) - MAX_EVEN} more"] if len(pairs) > MAX_EVEN else []
    return f" Even with {'; '.join([*named, *more])}." if pairs else ""


def _doubt(row: Row, doubts: frozenset[int]) -> str:
    return ' This row is doubted: see "Rows to doubt".' if id(row) in doubts else ""


def _choice(summary: Summary, row: Row) -> str:
    """What was free to choose, where it differs within the run."""
    named = [f"{caption(name)} {value_of(row, name)}" for name in summary.columns if name in CHOICES - {"backend"}]
    return ", ".join([value_of(row, "backend"), *named, f"batch {row.batch_per_rank}"])


def _memory(row: Row, headroom: float) -> str:
    held = _held(row)
    if held is None:
        return "memory n/a."
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
