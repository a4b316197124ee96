"""What to train with: the fastest setting that leaves headroom, for each task, with its alternatives. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.report.contract import key
from bench.report.rows import Row, Sampled, Summary
from bench.report.tables import caption, value_of
from bench.units import counted, percent, rate

HEADROOM = 0.9
"""Share of capacity that a recommended batch may hold."""
CHOICES = frozenset({"backend", "attention", "grad_ckpt", "branch_sync", "compile", "fused", "find_unused_parameters"})
"""What one is free to choose for a task; everything else is the task itself."""
OF_THE_RUN = frozenset({"masters_dtype", "optimizer_dtype"})


@dataclass(frozen=True, kw_only=True)
class Advice:
    """For one task."""

    task: str
    """What tells it from the other tasks of the run; empty when there is one."""
    chosen: Row | None
    """None when nothing was measured within the headroom."""
    alternatives: tuple[Row, ...]
    """The best of the other backends, and what is faster beyond the headroom."""


def advise(summary: Summary, headroom: float = HEADROOM) -> list[Advice]:
    """For each task of the run. Rows that thrash, or that were measured in a few steps, are never chosen."""
    tasks: dict[str, list[Row]] = {}
    for cell in summary.cells:
        task = key(cell.contract, without=CHOICES | OF_THE_RUN)
        tasks.setdefault(task, []).extend(row for row in cell.sound if not row.short)
    columns = [name for name in summary.columns if name not in CHOICES and name != "cell"]
    return [_advise(rows, columns, headroom) for rows in tasks.values() if rows]


def _advise(rows: Sequence[Row], columns: Sequence[str], headroom: float) -> Advice:
    ranked = sorted(rows, key=_rate, reverse=True)
    within = [row for row in ranked if (_held(row) or 0) <= headroom]
    chosen = within[0] if within else None
    alternatives: dict[str, Row] = {}
    for row in within:
        backend = row.settings["backend"]
        if chosen is not None and backend != chosen.settings["backend"]:
            alternatives.setdefault(str(backend), row)
    beyond = [row for row in ranked[:1] if row not in within]
    named = ", ".join(f"{caption(name)} {value_of(rows[0], name)}" for name in columns)
    return Advice(task=named, chosen=chosen, alternatives=(*beyond, *alternatives.values()))


def sentences(summary: Summary, advice: Sequence[Advice], headroom: float = HEADROOM) -> list[str]:
    """What to train with, why, and what else there is."""
    return [line for each in advice for line in _sentences(summary, each, headroom)]


def _sentences(summary: Summary, advice: Advice, headroom: float) -> Iterator[str]:
    task = f"For {advice.task}: " if advice.task else ""
    if advice.chosen is None:
        yield f"{task}nothing was measured within {percent(headroom)} of capacity."
    else:
        chosen, name = advice.chosen, _choice(summary, advice.chosen)
        figures = f"{rate(_rate(chosen))} samples/s, {_memory(chosen, headroom)} {_rests_on(chosen)}"
        yield f"{task}train with {name}: {figures}"
    for row in advice.alternatives:
        beyond = (_held(row) or 0) > headroom
        why = "faster, but beyond the headroom: " if beyond and advice.chosen else ""
        yield f"{task}or {why}{_choice(summary, row)}: {rate(_rate(row))} samples/s, {_memory(row, headroom)}"


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
