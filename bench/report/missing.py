"""Which planned attempts have no result yet, as after a run that was interrupted. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import JsonValue

from bench.records.outcome import Result
from bench.records.plan import CellPlan
from bench.records.verdict import Probe


@dataclass(frozen=True, kw_only=True)
class Missing:
    """A planned cell with batches that have no result."""

    cell_id: str
    axes: Mapping[str, JsonValue]
    """What names the cell to people: the backend, then every axis of the matrix."""
    batches: tuple[int | Literal["probe"], ...]
    """Per rank, in the order of the plan; ``probe`` stands for a search that has not ended."""


def missing(plans: Iterable[CellPlan], results: Sequence[Result], probes: Sequence[Probe] = ()) -> tuple[Missing, ...]:
    """The planned cells that are not measured completely, in the order of ``plans``.

    An attempt of a few steps does not count as the result of a planned batch, and single attempts of a search do not
    count as the search. A cell that its backend forbids has one skipped attempt instead of a search.
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
        batches = tuple(
            batch
            for batch in plan.batches
            if (cell_id not in searched if batch == "probe" else (cell_id, batch) not in measured)
        )
        if batches:
            cells.append(Missing(cell_id=cell_id, axes=plan.axes, batches=batches))
    return tuple(cells)
