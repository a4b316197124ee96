"""What to train with: the fastest setting that leaves headroom, for each task, with its alternatives. Pure.

Where a cell was searched, the search decides about the batches that it could try: only its best and its safe batch are
named. A batch that the search could not try, or that was measured after it, may be faster, and is marked as such.
"""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Literal, NamedTuple

from bench.records.best import Fastest
from bench.records.cell import COST_SETTINGS, HOLD_WHOLE_WEIGHTS, Train
from bench.records.plan import COST_OPTIONS, RunPlan
from bench.records.verdict import Goal, Probe, Verdict
from bench.report.controlled import ID, PARTIAL, RUN, controlled_key
from bench.report.doubts import may_be_off
from bench.report.missing import Missing
from bench.report.naming import MICRO_BATCHES_CAPTION, caption, search_end, value_of
from bench.report.rows import CellRows, Row, RowId, Summary
from bench.report.speedup import Pair, SpeedUp, between
from bench.units import counted, percent

CHOICES = frozenset({"backend", *COST_OPTIONS, *COST_SETTINGS})
"""Settings that are free to choose for a task, where neither the matrix nor the workload says otherwise. All other
settings belong to the task itself."""


def choices_of(plan: RunPlan | None) -> frozenset[str]:
    """The settings that are free to choose in a run: those that its matrix declares, else what changes the cost of a
    step alone."""
    if plan is None:
        return CHOICES
    return frozenset(plan.choices or {"backend", *COST_SETTINGS, *plan.cost_options})


class Certified(NamedTuple):
    """How sure `bench run --best` is of an answer."""

    answer: Fastest
    confidence: float


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A backend that the advice does not name."""

    backend: str
    cause: Literal["stale", "headroom", "invalid", "searches", "few_steps", "outcomes"]
    """Other sources made its results; no measured batch is within the headroom; its rows are invalid; its searches
    ended without an answer; it was only measured in a few steps or thrashes; nothing was measured."""
    details: tuple[str, ...] = ()
    """How its searches ended, or its outcomes."""


@dataclass(frozen=True, kw_only=True)
class Advice:
    """The advice for one task."""

    task: str
    """The settings that differ between the tasks of the run; empty when there is one task."""
    headroom: float
    """Largest share of capacity that a recommended batch may hold."""
    cells: tuple[CellRows, ...] = ()
    """Of the task."""
    chosen: Row | None
    """The fastest one; of those that are even with it, the simplest. None when nothing was measured within the
    headroom. Its memory is unknown only if that of every row is."""
    alternatives: tuple[Row, ...]
    """The best row of each other backend, and rows that are faster, but beyond the headroom or of unknown memory."""
    beyond: frozenset[RowId] = frozenset()
    """Rows that hold more than the headroom, or may do so in their next launch, as a search reckons."""
    rivals: tuple[SpeedUp, ...] = ()
    """The chosen row against the best row of each other cell, and the other batches of its own."""
    left_out: tuple[LeftOut, ...] = ()
    unsearched: Mapping[RowId, Goal | None] = field(default_factory=dict)
    """Rows that no search decided about: the goal of a search that could not try the batch, or None for a batch that
    was measured after the search."""
    search_ends: tuple[str, ...] = ()
    """How the searches ended, where nothing at all was measured in full."""
    invalid: bool = False
    """Whether rows were measured, and none is left because their figures are wrong."""
    remedy: str = ""
    """The option of a new search that helps when nothing is within the headroom."""
    doubted: bool = False
    """Whether the figures of the chosen row may be off."""
    choices: frozenset[str] = CHOICES
    """The settings that were free to choose."""
    runner_up: SpeedUp | None = None
    """The chosen row against the fastest row of another cell within the headroom; of its own cell if there is no
    other. None when it is the only one."""
    larger: Literal["tried", "not_tried", "max_batch"] = "tried"
    """Whether batches above the chosen one were tried in its cell, or a search stopped at its `max_batch`."""
    comparisons: int = 1
    """How many figures of the report are judged together, so that two rows have one interval and one word in it."""
    searched: bool = False
    """Whether a search decided about the cell of the chosen row."""
    certified: Certified | None = None
    """Of the chosen row, by `bench run --best`."""
    stands: Fastest | None = None
    """The answer of `bench run --best` that results still support. A simpler setting that is even may be chosen."""
    expected: bool = False
    """Whether `bench run --best` names the chosen row, though the mean of another one is higher."""
    missing: tuple[Missing, ...] = ()
    """What is planned of its runs and not measured. Until it is, there is no advice, only who leads."""

    @property
    def pairs(self) -> frozenset[Pair]:
        """What its ratios compare. The figures choose the row that leads, so its ratios are the most extreme: in 6000
        simulated reports on eight equal settings of five launches, 1.8 % named a winner. To count the pairs of all
        settings gives 0.7 %, and decides of 48 settings that were launched once only from 1.8 × on."""
        if self.chosen is None:
            return frozenset()
        best = [row for cell in self.cells if (row := self.best_of(cell))]
        shown = [*best, *self.alternatives, *(pair.reference for pair in self.rivals)]
        return frozenset(frozenset({self.chosen.id, row.id}) for row in shown if row is not self.chosen)

    def best_of(self, cell: CellRows) -> Row | None:
        """The fastest row that was measured in full, within the headroom if there is one."""
        within = [row for row in cell.full if row.id not in self.beyond]
        return max(within, key=lambda row: row.rate, default=cell.best)

    @property
    def unsure(self) -> bool:
        """Whether the chosen row is doubted, so that another one may be faster."""
        return self.doubted and (not self.rivals or any(not pair.ratio.decided for pair in self.rivals))

    @property
    def even(self) -> tuple[SpeedUp, ...]:
        """The rivals that are even with the chosen row."""
        return tuple(pair for pair in self.rivals if pair.ratio.even)

    @property
    def undecided(self) -> tuple[SpeedUp, ...]:
        """The rivals of which the difference may be noise."""
        return tuple(pair for pair in self.rivals if not pair.ratio.decided and pair.ratio.may_be_even)


def advise(
    summary: Summary,
    probes: Sequence[Probe] = (),
    headrooms: Collection[float] = (),
    choices: frozenset[str] = CHOICES,
    certified: Mapping[tuple[str, int], Certified] = MappingProxyType({}),
    beside: Collection[Hashable] = (),
) -> list[Advice]:
    """Advice for each task of the run, and for each headroom of its searches. Never chooses rows that thrash, that are
    invalid, that were measured in a few steps, or that other sources made than the newest ones.

    Args:
        headrooms: all headrooms of the report. If there is more than one, each task names its own.
        choices: settings of which to pick the best value.
        certified: the answers of `bench run --best`, by a cell's id and the batch per rank. They lead their tasks.
        beside: the other `Pair`s and figures that the report judges.
    """
    return _together(lambda n: _advise_all(summary, probes, headrooms, choices, certified, n), beside)


def _advise_all(
    summary: Summary,
    probes: Sequence[Probe],
    headrooms: Collection[float],
    choices: frozenset[str],
    certified: Mapping[tuple[str, int], Certified],
    comparisons: int,
) -> list[Advice]:
    tasks: dict[str, list[CellRows]] = {}
    free = choices | PARTIAL.difference(summary.columns)
    for cell in summary.cells:
        tasks.setdefault(controlled_key(cell.controlled, without=free), []).append(cell)
    one_backend = len({cell.cell.backend for cell in summary.cells}) == 1
    without = choices | ({"backend", ID} if one_backend else {ID})
    columns = [name for name in summary.columns if name not in without]
    searches: list[tuple[list[CellRows], float, list[Probe]]] = []
    for cells in tasks.values():
        ids = {cell.cell.id for cell in cells}
        of_task = [probe for probe in probes if probe.cell.id in ids]
        for headroom in sorted({probe.goal.headroom for probe in of_task} or {Goal().headroom}):
            searches.append((cells, headroom, [probe for probe in of_task if probe.goal.headroom == headroom]))
    names_headroom = len({*headrooms, *(headroom for _, headroom, _ in searches)}) > 1
    partly_imported = len({_imported(cells) for cells in tasks.values()}) > 1
    advice, off = [], may_be_off(summary)
    for cells, headroom, with_headroom in searches:
        row = cells[0].rows[0]
        followed = {"global_batch"} if row.global_batch is None else {"global_batch", MICRO_BATCHES_CAPTION}
        parts = [f"{caption(name)} {value_of(row, name)}" for name in columns if name not in followed]
        on = "" if "num_processes" in columns else f" on {counted(row.world_size, 'rank')}"
        stated = row.global_batch is not None and "global_batch" not in choices
        parts += [f"at a global batch of {row.global_batch}{on}"] if stated else []
        parts += [f"headroom {percent(headroom)}"] if names_headroom else []
        parts += ["imported"] if partly_imported and _imported(cells) else []
        advice.append(_advise(cells, with_headroom, ", ".join(parts), headroom, off, choices, certified, comparisons))
    return [task for task in advice if task.chosen or task.alternatives or task.search_ends or task.invalid]


def _imported(cells: Sequence[CellRows]) -> bool:
    return any(row.source for cell in cells for row in cell.rows)


def advise_by_run(
    summary: Summary,
    probes: Sequence[Probe] = (),
    choices: frozenset[str] = CHOICES,
    certified: Mapping[str, Mapping[tuple[str, int], Certified]] = MappingProxyType({}),
    beside: Collection[Hashable] = (),
) -> list[Advice]:
    """`advise` for each run by itself, where a report keeps runs apart: a search, or `bench run --best`, only decides
    about its own run. Where the run is a choice itself, they decide about none."""
    headrooms, runs = {probe.goal.headroom for probe in probes}, []
    if RUN in choices:
        return advise(summary, choices=choices, beside=beside)
    for name, run in {str(run): run for run in (cell.controlled.get(RUN) for cell in summary.cells)}.items():
        cells = tuple(cell for cell in summary.cells if cell.controlled.get(RUN) == run)
        of_run = [probe for probe in probes if probe.axes.get(RUN, run) == run]
        whose = certified if run is None else {name} & certified.keys()
        answers = {key: answer for each in whose for key, answer in certified[each].items()}
        runs.append(partial(_advise_all, replace(summary, cells=cells), of_run, headrooms, choices, answers))
    return _together(lambda n: [task for run in runs for task in run(n)], beside)


def _together(advise: Callable[[int], list[Advice]], beside: Collection[Hashable]) -> list[Advice]:
    """With all that a report judges judged together. How much that is may change what is even, and so what is chosen
    and compared: it only grows until it is enough."""
    n = 1
    while True:
        advice = advise(n)
        more = len({*beside}.union(*(task.pairs for task in advice)))
        if more <= n:
            return advice
        n = more


def _candidates(cell: CellRows, probes: Sequence[Probe]) -> list[Row]:
    """The rows that may be named, after the searches of this cell."""
    searches = _verdicts(probes)
    measured = {row.batch_per_rank: row for row in cell.full}
    return [
        row for row in cell.full if not searches or any(_may_be_named(row, *search, measured) for search in searches)
    ]


def _verdicts(probes: Sequence[Probe]) -> list[tuple[Goal, Verdict]]:
    return [(probe.goal, probe.found) for probe in probes if isinstance(probe.found, Verdict)]


def _may_be_named(row: Row, goal: Goal, verdict: Verdict, measured: Mapping[int, Row]) -> bool:
    """Whether a search leaves ``row`` as a candidate. The search knows which batches fail and which thrash. It names
    the fastest of the batches that it tried, so a faster one must have been measured later, or later launches of its
    safe batch held more than the headroom."""
    batch = row.batch_per_rank
    if batch in verdict.thrashing or (verdict.fails is not None and batch >= verdict.fails):
        return False
    if not (goal.tries(batch) and verdict.confirmed) or batch in verdict.answers:
        return True
    held = _held_by(row, verdict)
    answer = verdict.safe if held is not None and held <= goal.headroom else verdict.best
    if answer is None or row.rate > answer.samples_per_s:
        return True
    now = measured.get(answer.batch)
    return answer is verdict.safe and now is not None and (_held_by(now, verdict) or 0.0) > goal.headroom


def _held(row: Row, probes: Sequence[Probe], headroom: float) -> float | None:
    """Share of capacity that a row may hold, by the searches of its cell, if there are any. None: it is not known
    whether that is within the headroom."""
    if row.held is None and (row.held_at_least or 0.0) > headroom:
        return row.held_at_least
    held = [_held_by(row, verdict) for _, verdict in _verdicts(probes)]
    return max((share for share in held if share is not None), default=row.held)


def _held_by(row: Row, verdict: Verdict) -> float | None:
    """Share of capacity that a row may hold in its next launch, as a search of its cell reckons. None: unknown."""
    if row.held is None:
        return None
    of_answers = (
        answer.may_hold
        for answer in (verdict.best, verdict.safe)
        if answer and answer.batch == row.batch_per_rank and answer.may_hold is not None
    )
    return max(row.held, next(of_answers, row.held + (verdict.peak_spread or 0.0)))


def _unsearched(rows: Sequence[Row], probes: Sequence[Probe]) -> Mapping[RowId, Goal | None]:
    """Of the candidates of one cell, those that its searches did not decide about."""
    searches, undecided = _verdicts(probes), dict[RowId, Goal | None]()
    for row in rows if searches else ():
        if not any(goal.tries(row.batch_per_rank) for goal, _ in searches):
            undecided[row.id] = searches[0][0]
        elif all(verdict.confirmed and row.batch_per_rank not in verdict.answers for _, verdict in searches):
            undecided[row.id] = None
    return undecided


def _advise(
    cells: Sequence[CellRows],
    probes: Sequence[Probe],
    task: str,
    headroom: float,
    off: Mapping[RowId, float],
    choices: frozenset[str],
    certified: Mapping[tuple[str, int], Certified],
    comparisons: int,
) -> Advice:
    searches = [[probe for probe in probes if probe.cell.id == cell.cell.id] for cell in cells]
    candidates = [_candidates(cell, group) for cell, group in zip(cells, searches, strict=True)]
    if any(not row.stale for rows in candidates for row in rows):
        candidates = [[row for row in rows if not row.stale] for rows in candidates]
    ranked = sorted((row for rows in candidates for row in rows), key=lambda row: row.rate, reverse=True)
    held: dict[RowId, float] = {}
    unsearched: dict[RowId, Goal | None] = {}
    for rows, group in zip(candidates, searches, strict=True):
        held |= {row.id: share for row in rows if (share := _held(row, group, headroom)) is not None}
        unsearched |= _unsearched(rows, group)
    known = [row for row in ranked if row.id in held]
    unknown = [row for row in ranked if row.id not in held]
    beyond = [row for row in known[:1] if held[row.id] > headroom]
    within = [row for row in known if held[row.id] <= headroom]
    if all(row.held is None for row in ranked):
        within, unknown = unknown, []
    leader = next((row for row in within if (row.id.cell[0], row.batch_per_rank) in certified), None)
    if leader and between(within[0], leader, off, comparisons).ratio.has_winner:  # results came or changed since
        leader = None
    answer = certified.get((leader.id.cell[0], leader.batch_per_rank)) if leader else None
    chosen = _simplest(within, leader or within[0], off, comparisons) if within else None
    risky = {row.id for row in (*beyond, *unknown[:1])}
    faster = [row for row in ranked if row.id in risky and not (chosen and row.rate <= chosen.rate)]
    by_backend: dict[str, Row] = {}
    for row in (*within, *unknown):
        by_backend.setdefault(str(row.settings["backend"]), row)
    best_of_cell = {row.id.cell: row for row in reversed(within)}
    others = [row for row in within if chosen and (row.id.cell == chosen.id.cell or best_of_cell[row.id.cell] is row)]
    against = [*beyond, *(row for row in others if row is not chosen)]
    rivals = [row for row in within if chosen and row.id.cell != chosen.id.cell]
    rivals += _other_batches(chosen, cells, headroom) if chosen else []
    listed = {row.id: row for row in (*faster, *by_backend.values()) if row is not chosen}.values()
    named = {str(row.settings["backend"]) for row in (*within, *beyond, *unknown)}
    backends = dict.fromkeys(cell.cell.backend for cell in cells)
    return Advice(
        task=task,
        headroom=headroom,
        cells=tuple(cells),
        chosen=chosen,
        beyond=frozenset(row.id for row in known if held[row.id] > headroom),
        alternatives=tuple(row for row in listed if chosen is None or _is_alternative(row, chosen)),
        rivals=tuple(between(chosen, row, off, comparisons) for row in against if chosen),
        doubted=bool(chosen and chosen.id in off),
        left_out=tuple(_left_out(name, cells, probes) for name in backends if name not in named) if chosen else (),
        unsearched=unsearched,
        search_ends=() if ranked else tuple(dict.fromkeys(search_end(probe.found) for probe in probes)),
        invalid=not ranked and any(row.id in cell.invalid for cell in cells for row in cell.rows),
        remedy=probes[0].goal.remedy if probes else "",
        runner_up=next((between(chosen, row, off, comparisons) for row in rivals if chosen), None),
        larger=_larger(chosen, cells, probes) if chosen else "tried",
        choices=choices,
        comparisons=comparisons,
        certified=answer if chosen is leader else None,
        stands=answer and answer.answer,
        expected=bool(chosen and chosen is leader and chosen.rate < within[0].rate),
        searched=bool(chosen and {probe.cell.id for probe in probes} & {_cell_of(chosen, cells).cell.id}),
    )


def _simplest(within: Sequence[Row], leader: Row, off: Mapping[RowId, float], comparisons: int) -> Row:
    """The leader; of rows of other cells that are even with it, the one with the fewest settings to explain.

    Args:
        within: the fastest first.
    """
    of_cells = {leader.id.cell: leader}
    for row in within:
        of_cells.setdefault(row.id.cell, row)
    others = [row for row in of_cells.values() if row is not leader]
    even = [row for row in others if between(leader, row, off, comparisons).ratio.even]
    return min((leader, *even), key=_complexity)


def _complexity(row: Row) -> tuple[int, int]:
    """How much a setting asks of its reader: sharding, then the switches that are on."""
    backend = str(row.settings["backend"])
    sharded = HOLD_WHOLE_WEIGHTS.index(backend) if backend in HOLD_WHOLE_WEIGHTS else len(HOLD_WHOLE_WEIGHTS)
    defaults = {name: field.default for name, field in Train.model_fields.items()}
    switches = CHOICES.intersection(row.settings) - {"backend", "attention"}  # a kernel is no switch
    return sharded, sum(row.settings[name] not in (None, False, defaults.get(name)) for name in switches)


def _is_alternative(row: Row, chosen: Row) -> bool:
    """Whether a reader may prefer ``row``: unless it is slower and holds as much memory, or is the same setting at a
    slower batch."""
    if row.rate > chosen.rate:
        return True
    smaller = row.held is None or chosen.held is None or row.held < chosen.held
    return smaller and row.id.cell != chosen.id.cell


def _other_batches(chosen: Row, cells: Sequence[CellRows], headroom: float) -> list[Row]:
    """Of the chosen row's cell, within the headroom, the fastest first; those that its search has ruled out, too."""
    full = _cell_of(chosen, cells).full
    rows = [row for row in full if row is not chosen and bool(row.stale) == bool(chosen.stale)]
    within = [row for row in rows if chosen.held is None or (row.held is not None and row.held <= headroom)]
    return sorted(within, key=lambda row: row.rate, reverse=True)


def _cell_of(row: Row, cells: Sequence[CellRows]) -> CellRows:
    return next(cell for cell in cells if any(row is other for other in cell.rows))


def _larger(
    chosen: Row, cells: Sequence[CellRows], probes: Sequence[Probe]
) -> Literal["tried", "not_tried", "max_batch"]:
    cell = _cell_of(chosen, cells)
    if chosen.global_batch == chosen.batch_per_rank * chosen.world_size:
        return "tried"  # a larger one would not divide it
    if any(row.batch_per_rank > chosen.batch_per_rank for row in cell.rows):
        return "tried"
    found = [verdict for _, verdict in _verdicts([probe for probe in probes if probe.cell.id == cell.cell.id])]
    if any(verdict.fails is not None for verdict in found):
        return "tried"
    return "max_batch" if any(verdict.certificate == "cap_fits" for verdict in found) else "not_tried"


def _left_out(backend: str, cells: Sequence[CellRows], probes: Sequence[Probe]) -> LeftOut:
    """A backend that failed everywhere, or was measured in a few steps, says nothing of its memory."""
    of_backend = [cell for cell in cells if cell.cell.backend == backend]
    full = [row for cell in of_backend for row in cell.full]
    if full:
        return LeftOut(backend=backend, cause="stale" if all(row.stale for row in full) else "headroom")
    if any(row.id in cell.invalid for cell in of_backend for row in cell.rows):
        return LeftOut(backend=backend, cause="invalid")
    if ends := [search_end(probe.found) for probe in probes if probe.cell.backend == backend]:
        return LeftOut(backend=backend, cause="searches", details=tuple(ends))
    rows = [row for cell in of_backend for row in cell.rows]
    if any(row.measured for row in rows):
        return LeftOut(backend=backend, cause="few_steps")
    return LeftOut(backend=backend, cause="outcomes", details=tuple(dict.fromkeys(row.outcome for row in rows)))
