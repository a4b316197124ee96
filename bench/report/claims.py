"""Claims against measurements: CONFIRMED, REFUTED, UNDECIDED or NOT TESTED, with the numbers. Pure.

Two sides are compared only when they agree in everything except the fields that the claim compares.

A claim is CONFIRMED if the whole interval of its figure is within its bounds, REFUTED if all of it is outside, and
UNDECIDED if it contains a bound: another run could decide otherwise. The interval has 99 % confidence for all claims
together. Where the variation between launches is unknown, as of figures from elsewhere, the interval assumes one, and
the verdict says so. Doubted rows decide nothing. Where a figure has no samples at all, the verdict is that of the bare
figure, and says so.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal, NamedTuple

from pydantic import JsonValue

from bench.errors import near_miss
from bench.records.claim import Claim
from bench.records.figures import METRICS
from bench.report.claim_figures import interval_of, value_of
from bench.report.contract import OBSERVED, RUN, fields_in_words, unlike_fields
from bench.report.doubts import may_be_off
from bench.report.naming import caption, setting, settings_name
from bench.report.rows import CellRows, Row, Summary
from bench.report.speedup import of_both
from bench.statistics.intervals import Interval
from bench.statistics.launches import Basis
from bench.units import quantity

Verdict = Literal["CONFIRMED", "REFUTED", "UNDECIDED", "NOT TESTED"]


class Side(NamedTuple):
    """A row that one side of a claim names."""

    cell: CellRows
    row: Row


class NotTestedError(Exception):
    """A claim cannot be judged, and why."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One claim, and what the results say about it."""

    claim: Claim
    verdict: Verdict
    missing: str = ""
    """Why it was not tested: what is missing, or which fields differ."""
    of: Side | None = None
    against: Side | None = None
    of_value: float | None = None
    """In base units, like the next two."""
    against_value: float | None = None
    figure: float | None = None
    """The difference, the ratio or the value that the claim is about."""
    interval: Interval | None = None
    """Where the figure lies; None where that is unknown."""
    basis: Basis | None = None
    """Where the scatter between launches comes from; None where it is unknown, or there is none."""
    doubted: bool = False
    """Whether one of its rows is doubted."""


def judge_claims(summary: Summary, claims: Sequence[Claim]) -> list[Judged]:
    """Each claim against the results."""
    return [_judge(summary, claim, len(claims)) for claim in claims]


def _judge(summary: Summary, claim: Claim, comparisons: int) -> Judged:
    try:
        if claim.against is None:
            of, against = _find_one(summary, claim), None
        else:
            of, against = _find_pair(summary, claim, claim.against)
        values = [_metric(side, claim) for side in (of, against) if side]
    except NotTestedError as missing:
        return Judged(claim=claim, verdict="NOT TESTED", missing=str(missing))
    of_value, against_value = values[0], values[1] if against else None
    if against_value is None:
        figure = of_value
    elif not claim.ratio:
        figure = of_value - against_value
    elif against_value:
        figure = of_value / against_value
    else:
        return Judged(
            claim=claim,
            verdict="NOT TESTED",
            missing="no ratio to 0",
            of=of,
            against=against,
            of_value=of_value,
            against_value=against_value,
        )
    sides = [side.row for side in (of, against) if side]
    scatter = interval_of(claim, figure, sides[0], sides[1] if against else None, comparisons)
    off = of_both(may_be_off(summary), *sides)
    if off and against and not claim.ratio:
        off = math.inf  # a share of each side is no share of their difference
    steady = METRICS[claim.metric].of_rank is not None  # a peak of memory stands, also where steps were disturbed
    interval = scatter.interval if scatter else None
    may_lie = interval or (figure, figure)
    if off and not steady:
        may_lie = (may_lie[0] / (1 + off), may_lie[1] * (1 + off))
    undecided = (math.isinf(off) and not steady) or (scatter is not None and scatter.basis == "mixed sources")
    return Judged(
        claim=claim,
        verdict="UNDECIDED" if undecided else _verdict(claim, may_lie),
        of=of,
        against=against,
        of_value=of_value,
        against_value=against_value,
        figure=figure,
        interval=interval,
        basis=scatter.basis if scatter else None,
        doubted=off > 0,
    )


def _verdict(claim: Claim, interval: Interval) -> Verdict:
    low, high = interval
    least, most = bound(claim, "at_least"), bound(claim, "at_most")
    if (least is None or low >= least) and (most is None or high <= most):
        return "CONFIRMED"
    outside = (least is not None and high < least) or (most is not None and low > most)
    return "REFUTED" if outside else "UNDECIDED"


def bound(claim: Claim, end: Literal["at_least", "at_most"]) -> float | None:
    """In base units."""
    text: float | str | None = getattr(claim.bounds, end)
    return None if text is None else quantity(text, claim.kind)[0]


def side_name(side: Side, fields: Mapping[str, JsonValue]) -> str:
    """``zero2, batch 8``: a side by the ``fields`` that its claim names, and its batch."""
    settings = [
        str(side.cell.contract[name]) if name == "backend" else f"{name} {setting(name, side.cell.contract.get(name))}"
        for name in fields
        if name != "batch"
    ]
    return ", ".join([*settings, f"batch {side.row.batch_per_rank}"])


def _metric(side: Side, claim: Claim) -> float:
    """The side's value of the claim's metric.

    Raises:
        NotTestedError: it is unknown.
    """
    value = value_of(side.row, claim.metric)
    if value is None:
        raise NotTestedError(f"{caption(METRICS[claim.metric].short)} is unknown for {side_name(side, claim.of)}")
    return value


def _find_one(summary: Summary, claim: Claim) -> Side:
    """The one row of a claim that names one side.

    Raises:
        NotTestedError: there is none, or more than one.
    """
    return _only(list(_sides(summary, claim, claim.of)), claim.of)


def _find_pair(summary: Summary, claim: Claim, against: Mapping[str, JsonValue]) -> tuple[Side, Side]:
    """The two sides, which agree in everything except the compared fields.

    Raises:
        NotTestedError: there is none, or more than one.
    """
    ours, theirs = list(_sides(summary, claim, claim.of)), list(_sides(summary, claim, against))
    pairs = sorted(
        ((_unlike(one, other, claim), one, other) for one, other in product(ours, theirs)),
        key=lambda pair: len(pair[0]),
    )
    alike = [(one, other) for fields, one, other in pairs if not fields]
    if not alike:
        fields, one, other = pairs[0]
        unlike = fields_in_words(fields, one.cell.contract, other.cell.contract)
        raise NotTestedError(f"the two sides also differ in {unlike}")
    if len(alike) > 1:
        _only([one for one, _ in alike], claim.of)
        _only([other for _, other in alike], against)
    return alike[0]


def _unlike(one: Side, other: Side, claim: Claim) -> tuple[str, ...]:
    compared = [*claim.of, *OBSERVED] if "backend" in claim.of else list(claim.of)
    fields = [
        name for name in unlike_fields(one.cell.contract, other.cell.contract, but=compared[0]) if name not in compared
    ]
    any_batch = "batch" in claim.of or claim.where.get("batch") == "best"
    same_batch = any_batch or one.row.batch_per_rank == other.row.batch_per_rank
    return (*fields, *([] if same_batch else ["batch"]))


def _sides(summary: Summary, claim: Claim, side: Mapping[str, JsonValue]) -> Iterator[Side]:
    """The rows that one side names and that were measured in full.

    Raises:
        NotTestedError: there is none; says why.
    """
    wanted = {**claim.where, **side}
    cells = [cell for cell in summary.cells if _fits(cell, wanted)]
    if not cells:
        raise NotTestedError(_no_cell(summary, wanted))
    batch = wanted.get("batch")
    if batch == "best":
        sides = [Side(cell, cell.best) for cell in cells if cell.best]
    else:
        sides = [Side(cell, row) for cell in cells for row in cell.rows if batch in (None, row.batch_per_rank)]
    measured = [side for side in sides if side.row.measured and not side.row.short]
    if measured and all(side.row.id in side.cell.invalid for side in measured):
        raise NotTestedError(f"{settings_name(wanted, wanted)}: what was measured there is invalid")
    measured = [side for side in measured if side.row.id not in side.cell.invalid]
    if not measured and any(side.row.measured for side in sides):
        raise NotTestedError(f"{settings_name(wanted, wanted)}: only a few steps were measured there")
    if not measured:
        outcomes = dict.fromkeys(side.row.outcome for side in sides)
        raise NotTestedError(f"{settings_name(wanted, wanted)}: {', '.join(outcomes) or 'no such batch was measured'}")
    yield from measured


def _fits(cell: CellRows, wanted: Mapping[str, JsonValue]) -> bool:
    # An unknown field is not null; a run is named by its folder, and YAML may read that name as a number.
    fields = {name: str(value) if name == RUN else value for name, value in wanted.items() if name != "batch"}
    return all(name in cell.contract and _same(cell.contract[name], value) for name, value in fields.items())


def _same(one: JsonValue, other: JsonValue) -> bool:
    # In Python 1 == True.
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _no_cell(summary: Summary, wanted: Mapping[str, JsonValue]) -> str:
    """The condition that no result meets."""
    known = list(dict.fromkeys(name for cell in summary.cells for name in cell.contract))
    if RUN in wanted and RUN not in known:
        return f"no result has a field {RUN}: only a report of runs that share a cell has one"
    for name in wanted:
        if name != "batch" and name not in known:
            return " ".join(
                filter(None, [f"no result has a field {name}:", near_miss(name, known) or "see the matrix"])
            )
    for name, value in wanted.items():
        if name != "batch" and not any(_fits(cell, {name: value}) for cell in summary.cells):
            return f"no result has {settings_name({name: value}, [name])}"
    return f"no result has {settings_name(wanted, wanted)}"


def _only(sides: Sequence[Side], wanted: Mapping[str, JsonValue]) -> Side:
    """The only row.

    Raises:
        NotTestedError: there is more than one; says how they differ.
    """
    distinct = {side.row.id: side for side in sides}
    first, *others = distinct.values()
    if not others:
        return first
    fields = dict.fromkeys(
        name
        for other in others
        for name in (
            *unlike_fields(first.cell.contract, other.cell.contract, but=""),
            *(["batch"] if first.row.batch_per_rank != other.row.batch_per_rank else []),
        )
    )
    runs = ", ".join(sorted({str(side.cell.contract.get(RUN)) for side in distinct.values()}))
    which = ", ".join(f"{RUN} ({runs})" if name == RUN else name for name in fields)
    do = f"choose in `where`: {which}" if which else "report on one run only"
    raise NotTestedError(f"{len(distinct)} results match {settings_name(wanted, wanted)}: {do}")
