"""Which cells of a run are faster, like for like: at their best batches, and at matched batches. Pure.

The two answers can disagree, and a reader must see it: one backend may win because it fits a larger batch, another one
because it is faster at the same batch.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from pydantic import JsonValue

from bench.records.json_diff import same
from bench.report.controlled import PARTIAL, controlled_key, unlike_fields
from bench.report.doubts import may_be_off
from bench.report.rows import CellRows, Row, RowId, Summary
from bench.statistics.launches import half_width
from bench.statistics.verdict import RateRatio, rate_ratio

MAX_REFUSED = 20
Pair = frozenset[RowId]
"""Two rows, whichever is the reference."""


@dataclass(frozen=True, kw_only=True)
class SpeedUp:
    """``row`` against ``reference``: two measured rows that differ in the compared axis, and perhaps the batch."""

    reference: Row
    row: Row
    matched: bool
    """Whether both have the same batch; otherwise each has its best one."""
    unlike: tuple[str, ...] = ()
    """Fields that differ, too, because the user allowed it."""
    comparisons: int = 1
    """How many ratios are judged together with this one, itself included."""
    off: float = 0.0
    """By which share the ratio may be off because its rows are doubted; infinite where that is unknown."""

    @property
    def pair(self) -> Pair:
        return frozenset({self.row.id, self.reference.id})

    @property
    def ratio(self) -> RateRatio:
        """Throughput of ``row`` divided by that of ``reference``."""
        return throughput_ratio(self.row, self.reference, self.comparisons, self.off)


@dataclass(frozen=True, kw_only=True)
class Refused:
    """Two cells with different values of the compared axis that must not be compared."""

    one: CellRows
    other: CellRows
    fields: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The comparison of the values of one axis."""

    axis: str
    speed_ups: tuple[SpeedUp, ...]
    refused: tuple[Refused, ...]
    """At most `MAX_REFUSED`."""
    more_refused: bool = False
    """Whether more pairs were not compared."""
    comparisons: int = 1
    """How many ratios are judged together."""

    def judged_with(self, comparisons: int) -> "Comparison":
        """The same, where so many ratios are judged together."""
        speed_ups = tuple(replace(pair, comparisons=comparisons) for pair in self.speed_ups)
        return replace(self, speed_ups=speed_ups, comparisons=comparisons)

    @property
    def pairs(self) -> frozenset[Pair]:
        return frozenset(pair.pair for pair in self.speed_ups)

    @property
    def rows(self) -> frozenset[RowId]:
        """Every row that is part of a comparison."""
        return frozenset(row.id for pair in self.speed_ups for row in (pair.reference, pair.row))


def throughput_ratio(row: Row, reference: Row, comparisons: int = 1, off: float = 0.0) -> RateRatio:
    """Of two measured rows; ``comparisons`` and ``off``: see `SpeedUp`."""
    ours, theirs = row.measured, reference.measured
    assert ours
    assert theirs
    variation = ours.variation if theirs.launches else None
    within = half_width(theirs.launches, ours.launches, variation)
    ratio = rate_ratio(row.rate / reference.rate, within, comparisons, off)
    # Whether all their launches that measured differ in the same files from the newest sources, or in none.
    stale = {launch.stale for side in (row, reference) for launch in side.each if launch.measured}
    return ratio if len(stale) == 1 else replace(ratio, basis="mixed sources")


def of_both(off: Mapping[RowId, float], *rows: Row) -> float:
    """By which share the ratio of the rows may be off, where each may be off by its own."""
    return math.prod(1 + off.get(row.id, 0.0) for row in rows) - 1


def between(row: Row, reference: Row, off: Mapping[RowId, float], comparisons: int) -> SpeedUp:
    """Two rows, each at its own batch, of which each may be ``off``."""
    both = of_both(off, row, reference)
    return SpeedUp(row=row, reference=reference, matched=False, comparisons=comparisons, off=both)


def even_batches(cell: CellRows, off: Mapping[RowId, float], comparisons: int) -> tuple[int, ...]:
    """Batches of a cell whose throughput is even with that of its best one."""
    best, rows = cell.best, [row for row in cell.full if row is not cell.best]
    return tuple(row.batch_per_rank for row in rows if best and between(best, row, off, comparisons).ratio.even)


def compare_axis(
    summary: Summary,
    axis: str = "backend",
    *,
    reference: JsonValue = None,
    allowed: frozenset[str] = frozenset(),
) -> Comparison:
    """Compare cells that have different values of ``axis`` and agree in everything else.

    Args:
        reference: the value of ``axis`` to compare the others with; by default the first one of each group.
        allowed: fields that may differ, too; every figure that depends on this says so.
    """
    except_for = frozenset({axis, *allowed}) | PARTIAL  # checked pair by pair
    groups: dict[str, list[CellRows]] = {}
    for cell in summary.cells:
        groups.setdefault(controlled_key(cell.controlled, without=except_for), []).append(cell)
    speed_ups, alone = [], []
    for cells in groups.values():
        pairs = list(_speed_ups(cells, axis, reference, allowed))
        speed_ups += pairs
        alone += [cell for cell in cells if cell.best and not (pairs and axis in cell.controlled)]
    off = may_be_off(summary)
    refused = tuple(islice(_refused(alone, summary.cells, axis, allowed), MAX_REFUSED + 1))
    found = Comparison(
        axis=axis,
        speed_ups=tuple(replace(pair, off=of_both(off, pair.row, pair.reference)) for pair in speed_ups),
        refused=refused[:MAX_REFUSED],
        more_refused=len(refused) > MAX_REFUSED,
    )
    return found.judged_with(max(len(found.pairs), 1))


def _speed_ups(
    cells: Sequence[CellRows], axis: str, reference: JsonValue, allowed: frozenset[str]
) -> Iterator[SpeedUp]:
    """Each cell against the most similar cell that has the reference's value."""
    measured = [(cell.controlled.get(axis), cell, cell.best) for cell in cells if cell.best and axis in cell.controlled]
    values = [value for value, _, _ in measured]
    against = next((value for value in values if same(value, reference)), next(iter(values), None))
    references = [(cell, best) for value, cell, best in measured if same(value, against)]
    for value, cell, best in measured:
        if same(value, against):
            continue
        pairs = [(unlike_fields(first.controlled, cell.controlled, but=axis), first, top) for first, top in references]
        unlike, first, top = min(pairs, key=lambda pair: len(pair[0]))
        if not allowed.issuperset(unlike):
            continue
        yield SpeedUp(reference=top, row=best, matched=False, unlike=unlike)
        rows, others = _by_batch(cell), _by_batch(first)
        for batch in sorted(rows):
            if batch in others:
                yield SpeedUp(reference=others[batch], row=rows[batch], matched=True, unlike=unlike)


def _by_batch(cell: CellRows) -> dict[int, Row]:
    """Of two rows with the same batch, the faster one counts, as it does for the best batch."""
    return {row.batch_per_rank: row for row in sorted(cell.full, key=lambda row: row.rate)}


def _refused(
    alone: Sequence[CellRows], cells: Sequence[CellRows], axis: str, allowed: frozenset[str]
) -> Iterator[Refused]:
    """For each cell that was compared with none, the most similar cell with another value of the axis."""
    by_value: dict[str, list[CellRows]] = {}
    for cell in cells:
        if cell.best:
            by_value.setdefault(controlled_key({axis: cell.controlled.get(axis)}), []).append(cell)
    seen = set()
    for cell in alone:
        own_value = controlled_key({axis: cell.controlled.get(axis)})
        others = [other for value, group in by_value.items() if value != own_value for other in group]
        unlike, nearest = _most_similar(cell, others, axis)
        fields = tuple(name for name in unlike if name not in allowed)
        if nearest is not None and fields and (pair := frozenset({cell.rows[0].id, nearest.rows[0].id})) not in seen:
            seen.add(pair)
            yield Refused(one=cell, other=nearest, fields=fields)


def _most_similar(cell: CellRows, others: Sequence[CellRows], axis: str) -> tuple[tuple[str, ...], CellRows | None]:
    """The cell of ``others`` that differs in the fewest fields, and these fields."""
    fewest: tuple[tuple[str, ...], CellRows | None] = ((), None)
    for other in others:
        both_know = axis in cell.controlled and axis in other.controlled
        fields = unlike_fields(cell.controlled, other.controlled, but=axis if both_know else "")
        if fewest[1] is None or len(fields) < len(fewest[0]):
            fewest = fields, other
        if len(fields) <= 1:
            break
    return fewest
