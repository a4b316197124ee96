"""Which planned attempts have no result yet, as after a run that was interrupted. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from bench.records.best import Best
from bench.records.outcome import KINDS, Result
from bench.records.plan import CellPlan
from bench.records.verdict import Probe, Verdict


@dataclass(frozen=True, kw_only=True)
class Missing:
    """A planned cell with batches that have no result."""

    cell_id: str
    axes: Mapping[str, JsonValue]
    """What names the cell to people: the backend, then every axis of the matrix."""
    batches: tuple[int, ...]
    """Per rank, in the order of the plan."""
    search: bool = False
    """Whether its search has not ended."""
    launches: tuple[int, int] | None = None
    """How many launches these batches have, and how many are planned; None: they have no result at all."""
    walked_to: int | None = None
    """The largest batch that the search's walk trained; None without one."""
    best: bool = False
    """Whether it is all that `bench run --best` may still need, in the place of cells."""
    running: bool = False
    """Whether a process is measuring it."""


def missing(
    plans: Iterable[CellPlan],
    results: Sequence[Result],
    probes: Sequence[Probe] = (),
    walked_to: Mapping[str, int] | None = None,
) -> tuple[Missing, ...]:
    """The planned cells that are not measured completely, in the order of ``plans``.

    A cell is listed once for what has no result, and once for each number of launches that is smaller than planned.
    What did not succeed at first is not launched again.

    An attempt of a few steps does not count as the result of a planned batch, and single attempts of a search do not
    count as the search. A cell that its backend forbids has one skipped attempt instead of a search.

    Args:
        walked_to: the largest batch of each walk, by the cell's id.
    """
    measured = {
        (result.attempt.cell.id, result.attempt.batch_per_rank) for result in results if not result.attempt.short
    }
    searched = {probe.cell.id for probe in probes}
    tried = {result.attempt.cell.id for result in results if result.outcome.kind != "skipped"}
    searched |= {result.attempt.cell.id for result in results} - tried  # nothing to search
    cells = []
    for plan in plans:
        cell_id = plan.cell.id
        batches = tuple(batch for batch in plan.batches if (cell_id, batch) not in measured)
        search = plan.search and cell_id not in searched
        if batches or search:
            walk = (walked_to or {}).get(cell_id) if search else None
            cells.append(Missing(cell_id=cell_id, axes=plan.axes, batches=batches, search=search, walked_to=walk))
        cells += _too_few(plan, [result for result in results if result.attempt.cell.id == cell_id], probes)
    return tuple(cells)


def without_ruled_out(cells: Sequence[Missing], best: Best | None) -> tuple[Missing, ...]:
    """Without what `bench run --best` did not need to measure. If it has not ended, nobody knows what that is."""
    if best is None:
        return tuple(cells)
    rest = [Missing(cell_id=best.cells[0], axes={}, batches=(), best=True)] if best.cells and not best.ended else []
    return (*(cell for cell in cells if cell.cell_id not in best.cells), *rest)


def _too_few(plan: CellPlan, results: Sequence[Result], probes: Sequence[Probe]) -> Iterator[Missing]:
    """Batches of the plan, and answers of its search, with fewer launches than planned."""
    if plan.launches == 1:
        return
    found = [probe.found for probe in probes if probe.cell.id == plan.cell.id and plan.search]
    answers = (batch for verdict in found if isinstance(verdict, Verdict) for batch in verdict.answers)
    full = [result for result in results if not result.attempt.short]
    first = {result.attempt.batch_per_rank: result.outcome.kind for result in full if result.attempt.launch == 1}
    by_number: dict[int, list[int]] = {}
    for batch in dict.fromkeys([*plan.batches, *answers]):
        if batch in first and KINDS[first[batch]].measured:
            numbers = {result.attempt.launch for result in full if result.attempt.batch_per_rank == batch}
            by_number.setdefault(len(numbers.intersection(range(1, plan.launches + 1))), []).append(batch)
    for number, batches in sorted(by_number.items()):
        if number < plan.launches:
            launches = number, plan.launches
            yield Missing(cell_id=plan.cell.id, axes=plan.axes, batches=tuple(batches), launches=launches)
