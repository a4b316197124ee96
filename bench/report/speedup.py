"""Who is faster, like for like: best batch against best batch and matched batches side by side. Pure.

The two can disagree, and a reader must see it: a large batch is a merit of its own, and so is speed at an equal one.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from pydantic import JsonValue

from bench.report.contract import OBSERVED, differing, in_words, key, same
from bench.report.doubts import doubted
from bench.report.rows import CellRows, Row, Sampled, Summary
from bench.report.tables.attempts import Table, caption, cell_name, setting, value_of
from bench.units import rate

MAX_REFUSED = 20


@dataclass(frozen=True, kw_only=True)
class SpeedUp:
    """``row`` against ``reference``: two measured rows that differ in the compared axis, and perhaps the batch."""

    reference: Row
    row: Row
    matched: bool
    """At the same batch; else each at its best."""
    unlike: tuple[str, ...] = ()
    """Fields that differ all the same, by the user's leave."""

    @property
    def ratio(self) -> float:
        """Throughput of ``row`` by that of ``reference``."""
        return _rate(self.row) / _rate(self.reference)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Of the ratio, from both sides' intervals as if independent, on a logarithmic scale."""
        halves = [_log_half_width(each) for each in (self.row, self.reference)]
        if None in halves:
            return None
        half = math.hypot(*(half for half in halves if half is not None))
        return self.ratio * math.exp(-half), self.ratio * math.exp(half)

    @property
    def even(self) -> bool:
        """Whether the interval holds 1; unknown is not even."""
        return self.interval is not None and self.interval[0] <= 1 <= self.interval[1]


@dataclass(frozen=True, kw_only=True)
class Refused:
    """Two cells with different values of the compared axis that must not be compared."""

    one: CellRows
    other: CellRows
    fields: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All that may be said about one axis."""

    axis: str
    speed_ups: tuple[SpeedUp, ...]
    refused: tuple[Refused, ...]
    """At most `MAX_REFUSED`."""
    more_refused: bool = False
    """Whether there would have been more."""


def compare(
    summary: Summary,
    axis: str = "backend",
    *,
    reference: JsonValue = None,
    allowed: frozenset[str] = frozenset(),
) -> Comparison:
    """Cells with different values of ``axis`` against each other, where all else agrees.

    Args:
        reference: the value of ``axis`` that the others are set against; else each group's first.
        allowed: fields that may differ all the same; every figure that this makes possible says so.
    """
    except_for = frozenset({axis, *allowed}) | OBSERVED  # checked pair by pair
    groups: dict[str, list[CellRows]] = {}
    for cell in summary.cells:
        groups.setdefault(key(cell.contract, without=except_for), []).append(cell)
    speed_ups, alone = [], []
    for cells in groups.values():
        found = list(_speed_ups(cells, axis, reference, allowed))
        speed_ups += found
        alone += [cell for cell in cells if cell.best and not (found and axis in cell.contract)]
    refused = tuple(islice(_refused(alone, summary.cells, axis, allowed), MAX_REFUSED + 1))
    return Comparison(
        axis=axis,
        speed_ups=tuple(speed_ups),
        refused=refused[:MAX_REFUSED],
        more_refused=len(refused) > MAX_REFUSED,
    )


def _speed_ups(
    cells: Sequence[CellRows], axis: str, reference: JsonValue, allowed: frozenset[str]
) -> Iterator[SpeedUp]:
    """Each cell against the one of the reference's value that it differs least from."""
    measured = [(cell.contract.get(axis), cell, cell.best) for cell in cells if cell.best and axis in cell.contract]
    values = [value for value, _, _ in measured]
    against = next((value for value in values if same(value, reference)), next(iter(values), None))
    references = [(cell, best) for value, cell, best in measured if same(value, against)]
    for value, cell, best in measured:
        if same(value, against):
            continue
        pairs = [(differing(first.contract, cell.contract, but=axis), first, top) for first, top in references]
        unlike, first, top = min(pairs, key=lambda pair: len(pair[0]))
        if not allowed.issuperset(unlike):
            continue
        yield SpeedUp(reference=top, row=best, matched=False, unlike=unlike)
        # A few steps of a search decide what fits, not who is faster.
        mine, theirs = ({row.batch_per_rank: row for row in _slowest_first(each)} for each in (cell, first))
        for batch in sorted(mine):
            if batch in theirs:
                yield SpeedUp(reference=theirs[batch], row=mine[batch], matched=True, unlike=unlike)


def _slowest_first(cell: CellRows) -> list[Row]:
    """Of two rows of one batch the faster one counts, as it does for the best."""
    return sorted((row for row in cell.sound if not row.short), key=_rate)


def _refused(
    alone: Sequence[CellRows], cells: Sequence[CellRows], axis: str, allowed: frozenset[str]
) -> Iterator[Refused]:
    """For each cell without a like one, the nearest with another value of the axis."""
    by_value: dict[str, list[CellRows]] = {}
    for cell in cells:
        if cell.best:
            by_value.setdefault(key({axis: cell.contract.get(axis)}), []).append(cell)
    seen = set()
    for one in alone:
        mine = key({axis: one.contract.get(axis)})
        others = [cell for value, them in by_value.items() if value != mine for cell in them]
        unlike, other = _nearest(one, others, axis)
        fields = tuple(name for name in unlike if name not in allowed)
        if other is not None and fields and (pair := frozenset({id(one), id(other)})) not in seen:
            seen.add(pair)
            yield Refused(one=one, other=other, fields=fields)


def _nearest(one: CellRows, others: Sequence[CellRows], axis: str) -> tuple[tuple[str, ...], CellRows | None]:
    """The one of ``others`` that differs in the fewest fields, and these."""
    found: tuple[tuple[str, ...], CellRows | None] = ((), None)
    for other in others:
        known = axis in one.contract and axis in other.contract
        fields = differing(one.contract, other.contract, but=axis if known else "")
        if found[1] is None or len(fields) < len(found[0]):
            found = fields, other
        if len(fields) <= 1:
            break
    return found


def table(summary: Summary, found: Comparison) -> Table:
    """Best against best, then the matched batches, of each pair of cells."""
    axis = caption(found.axis)
    settings = tuple(name for name in summary.columns if name not in (found.axis, "cell"))
    numbers = (f"{axis} A", "batch A", "samples/s A", f"{axis} B", "batch B", "samples/s B")
    values = {id(row): setting(found.axis, _value(cell, found.axis)) for cell in summary.cells for row in cell.rows}
    doubts, rows = doubted(summary), []
    marked = [not doubts.isdisjoint((id(each.reference), id(each.row))) for each in found.speed_ups]
    for each, doubt in zip(found.speed_ups, marked, strict=True):
        named = (*(_of_both(each, name) for name in settings),)
        sides = [
            text
            for side in (each.reference, each.row)
            for text in (values[id(side)], str(side.batch_per_rank), rate(_rate(side)))
        ]
        how = f"matched batch {each.row.batch_per_rank}" if each.matched else "best against best"
        rows.append((*named, how, _words(each, values) + (", doubted" if doubt else ""), *sides))
    unlike = sorted({name for each in found.speed_ups for name in each.unlike})
    loud = f"UNLIKE: these figures compare results that differ in {', '.join(unlike)}, because they were asked for."
    return Table(
        title=f"Which {axis} is faster",
        headers=(*map(caption, settings), "how", "faster", *numbers),
        rows=tuple(rows),
        numeric=frozenset({"batch A", "batch B", "samples/s A", "samples/s B"}),
        bold=frozenset((index, "faster") for index, each in enumerate(found.speed_ups) if not each.matched),
        notes=(
            *([loud] if unlike else []),
            ("" if unlike else "Only results that differ in nothing else are compared. ")
            + "Best against best: each at the batch of its highest throughput. In brackets: where the ratio lies with"
            " 95 % confidence, from the scatter of steps within each attempt.",
            *(['Doubted: a row of it stands in "Rows to doubt".'] if any(marked) else []),
        ),
    )


def _value(cell: CellRows, axis: str) -> JsonValue:
    """Of a setting, or of what else tells results apart, such as the hardware."""
    return cell.contract.get(axis, cell.rows[0].settings.get(axis))


def nothing_varies(summary: Summary, axis: str) -> tuple[str, ...]:
    """A sentence where fewer than two values of ``axis`` were measured; none where there are two."""
    every = [cell for cell in summary.cells if axis in cell.contract]
    values, measured = (
        tuple(dict.fromkeys(setting(axis, cell.contract[axis]) for cell in cells))
        for cells in (every, [cell for cell in every if cell.best])
    )
    if len(values) == 1:
        return (f"{caption(axis)} is {values[0]} in all results: nothing to compare.",)
    if len(measured) == 1:
        return (f"{caption(axis)} is {measured[0]} in all results that were measured: nothing to compare.",)
    return ()


def refusals(summary: Summary, found: Comparison) -> list[str]:
    """One sentence for each pair that was not compared, with the fields that differ."""
    told = [
        f"{cell_name(summary, each.one.rows[0])} is not compared with {cell_name(summary, each.other.rows[0])}: they"
        f" differ in {in_words(each.fields, each.one.contract, each.other.contract)}."
        for each in found.refused
    ]
    return [*told, "These are the first; more pairs are not compared."] if found.more_refused else told


def _of_both(each: SpeedUp, name: str) -> str:
    """A setting's value; of either side where the user let them differ."""
    a, b = value_of(each.reference, name), value_of(each.row, name)
    return a if a == b else f"{a} (A), {b} (B)"


def _words(each: SpeedUp, values: Mapping[int, str]) -> str:
    """``zero2 1.43× (1.40 to 1.46)``; the winner first, by its value of what is compared."""
    won, ratio, interval = each.row, each.ratio, each.interval
    if ratio < 1:
        won, ratio = each.reference, 1 / ratio
        interval = (1 / interval[1], 1 / interval[0]) if interval else None
    within = f" ({interval[0]:.2f} to {interval[1]:.2f})" if interval else ""
    # Without an interval, what reads 1.00 has no winner either.
    if each.even or (interval is None and f"{ratio:.2f}" == "1.00"):
        return f"even, {ratio:.2f}×{within}" + _mark(each)
    return f"{values[id(won)]} {ratio:.2f}×{within}" + _mark(each)


def _mark(each: SpeedUp) -> str:
    return f" UNLIKE in {', '.join(each.unlike)}" if each.unlike else ""


def _rate(row: Row) -> float:
    assert row.measured is not None
    return row.measured.samples_per_s_global


def _log_half_width(row: Row) -> float | None:
    if not isinstance(row.measured, Sampled) or row.measured.interval is None:
        return None
    low, high = row.measured.interval
    return math.log(high / low) / 2
