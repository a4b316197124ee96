"""Claims against measurements: CONFIRMED, REFUTED, UNDECIDED or NOT TESTED, with the numbers. Pure.

Two sides are compared only when they agree in everything except the fields that the claim compares. A claim is
CONFIRMED if the whole interval of its figure is within its bounds, and REFUTED if all of it is outside. `bench guide
imports` says when neither holds. An interval includes the run-to-run variation of all sides, between steps and between
launches: see `bench.statistics.launches`. A peak of memory is taken as it is.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal, NamedTuple, get_args

from pydantic import JsonValue

from bench.errors import near_miss
from bench.records.claim import Claim
from bench.records.figures import ENERGY, METRICS, STEP_TIME
from bench.records.figures import THROUGHPUT as SAMPLES_PER_S
from bench.report.controlled import RUN, SEEN_WHEN_MEASURED, fields_in_words, unlike_fields
from bench.report.doubts import may_be_off
from bench.report.naming import caption, setting, settings_name
from bench.report.rows import CellRows, Row, Summary
from bench.report.speedup import Pair, of_both, throughput_ratio
from bench.statistics.intervals import Interval, difference_interval, mean_interval, student_t
from bench.statistics.launches import ASSUMED, Basis
from bench.statistics.ratio import confidence_of
from bench.units import quantity

THROUGHPUT = (SAMPLES_PER_S.name, STEP_TIME.name)
"""Metrics of the throughput window."""
PHASE = "_s_mean"
"""The end of a metric that is a phase."""
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
    """Where the variation between launches comes from; None where it is unknown, or there is none."""
    doubted: bool = False
    """Whether one of its rows is doubted."""

    @property
    def within_noise(self) -> bool:
        """Whether a bound lies in the interval."""
        return self.interval is not None and _verdict(self.claim, self.interval) == "UNDECIDED"


def judge_claims(summary: Summary, claims: Sequence[Claim], comparisons: int | None = None) -> list[Judged]:
    """Each claim against the results.

    Args:
        comparisons: how many figures the report judges together, for the pairs of rows that it compares, too; by
            default these alone.
    """
    return [_judge(summary, claim, len(claims), comparisons or len(claims)) for claim in claims]


def uncertain(summary: Summary, claims: Sequence[Claim]) -> frozenset[Pair | int]:
    """What claims judge by an interval: pairs of rows by their throughput, and other figures, by the claim's number."""
    found = set[Pair | int]()
    for number, claim in enumerate(claims):
        with suppress(NotTestedError):
            of, against = _find(summary, claim)
            if against and _compares_rows(claim):
                found.add(frozenset({of.row.id, against.row.id}))
            elif not _is_steady(claim.metric):
                found.add(number)
    return frozenset(found)


def _judge(summary: Summary, claim: Claim, claims: int, comparisons: int) -> Judged:
    try:
        of, against = _find(summary, claim)
        of_value, against_value = _metric(of, claim), _metric(against, claim) if against else None
    except NotTestedError as missing:
        return Judged(claim=claim, verdict="NOT TESTED", missing=str(missing))
    judged = Judged(
        claim=claim, verdict="NOT TESTED", of=of, against=against, of_value=of_value, against_value=against_value
    )
    if against_value is None:
        figure = of_value
    elif not claim.ratio:
        figure = of_value - against_value
    elif against_value:
        figure = of_value / against_value
    else:
        return replace(judged, missing="no ratio to 0")
    sides = [side.row for side in (of, against) if side]
    within = interval_of(claim, figure, of.row, against.row if against else None, claims, comparisons)
    off = of_both(may_be_off(summary), *sides)
    if off and against and not claim.ratio:
        off = math.inf  # a share of each side is no share of their difference
    steady = _is_steady(claim.metric)
    low, high = within.interval if within else (figure, figure)
    if off and not steady:
        low, high = low / (1 + off), high * (1 + off)
    undecided = (math.isinf(off) and not steady) or (within is not None and within.basis == "mixed sources")
    return replace(
        judged,
        verdict="UNDECIDED" if undecided else _verdict(claim, (low, high)),
        figure=figure,
        interval=within.interval if within else None,
        basis=within.basis if within else None,
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
        str(side.cell.controlled[name])
        if name == "backend"
        else f"{name} {setting(name, side.cell.controlled.get(name))}"
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


def _find(summary: Summary, claim: Claim) -> tuple[Side, Side | None]:
    """The one row that a claim names; or its two sides, which agree in everything except the compared fields.

    Raises:
        NotTestedError: there is none, or more than one.
    """
    ours = list(_sides(summary, claim, claim.of))
    if claim.against is None:
        return _only(ours, claim.of), None
    theirs = list(_sides(summary, claim, claim.against))
    pairs = [(_unlike(side, other, claim), side, other) for side, other in product(ours, theirs)]
    alike = [(side, other) for fields, side, other in pairs if not fields]
    if not alike:
        fields, side, other = min(pairs, key=lambda pair: len(pair[0]))
        unlike = fields_in_words(fields, side.cell.controlled, other.cell.controlled)
        raise NotTestedError(f"the two sides also differ in {unlike}")
    if len(alike) > 1:
        _only([side for side, _ in alike], claim.of)
        _only([other for _, other in alike], claim.against)
    return alike[0]


def _unlike(side: Side, other: Side, claim: Claim) -> tuple[str, ...]:
    compared = [*claim.of, *SEEN_WHEN_MEASURED] if "backend" in claim.of else list(claim.of)
    fields = [
        name
        for name in unlike_fields(side.cell.controlled, other.cell.controlled, but=compared[0])
        if name not in compared
    ]
    any_batch = "batch" in claim.of or claim.where.get("batch") == "best"
    same_batch = any_batch or side.row.batch_per_rank == other.row.batch_per_rank
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
        raise NotTestedError(f"{settings_name(wanted, wanted)}: only a short trial was made there")
    if not measured:
        outcomes = dict.fromkeys(side.row.outcome for side in sides)
        raise NotTestedError(f"{settings_name(wanted, wanted)}: {', '.join(outcomes) or 'no such batch was measured'}")
    yield from measured


def _fits(cell: CellRows, wanted: Mapping[str, JsonValue]) -> bool:
    # An unknown field is not null; a run is named by its folder, and YAML may read that name as a number.
    fields = {name: str(value) if name == RUN else value for name, value in wanted.items() if name != "batch"}
    return all(
        name in cell.controlled
        and cell.controlled[name] == value
        and isinstance(cell.controlled[name], bool) == isinstance(value, bool)  # in Python 1 == True
        for name, value in fields.items()
    )


def _no_cell(summary: Summary, wanted: Mapping[str, JsonValue]) -> str:
    """The condition that no result meets."""
    known = list(dict.fromkeys(name for cell in summary.cells for name in cell.controlled))
    if RUN in wanted and RUN not in known:
        return f"no result has a field {RUN}: only a report of runs that share a cell has one"
    for name in wanted:
        if name != "batch" and name not in known:
            return f"no result has a field {name}: {near_miss(name, known) or 'see the matrix'}"
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
            *unlike_fields(first.cell.controlled, other.cell.controlled, but=""),
            *(["batch"] if first.row.batch_per_rank != other.row.batch_per_rank else []),
        )
    )
    runs = ", ".join(sorted({str(side.cell.controlled.get(RUN)) for side in distinct.values()}))
    which = ", ".join(f"{RUN} ({runs})" if name == RUN else name for name in fields)
    do = f"choose in `where`: {which}" if which else "report on one run only"
    raise NotTestedError(f"{len(distinct)} results match {settings_name(wanted, wanted)}: {do}")


class Uncertain(NamedTuple):
    """Where a figure lies."""

    interval: Interval
    basis: Basis | None
    """Where the variation between launches comes from; None where none is counted."""


def value_of(row: Row, metric: str) -> float | None:
    """The measured value; None where it is unknown."""
    if metric.endswith(PHASE):
        times = row.phases and row.phases.of(metric.removesuffix(PHASE))
        return times.mean_s if times else None
    if row.measured is None:
        return None
    if metric not in THROUGHPUT:
        return row.measured.figures.get(metric)
    return row.measured.samples_per_s_global if metric == THROUGHPUT[0] else row.measured.step_time_s_rank_max


def interval_of(
    claim: Claim, figure: float, of: Row, against: Row | None = None, claims: int = 1, comparisons: int = 1
) -> Uncertain | None:
    """Around the figure of a claim, both sides taken as independent; None where the variation of one is unknown.

    Args:
        claims: number of claims that are judged together.
        comparisons: number of ratios of throughputs that are judged together.
    """
    confidence = confidence_of(claims)
    ours = _of_one(of, claim.metric, confidence)
    if against is None or ours is None:
        return ours
    theirs = _of_one(against, claim.metric, confidence)
    if theirs is None:
        return None
    bases = [side.basis for side in (ours, theirs) if side.basis]
    basis = max(bases, key=get_args(Basis).index, default=None)  # the weakest
    if not claim.ratio:
        return Uncertain(difference_interval(figure, ours.interval, theirs.interval), basis)
    if _compares_rows(claim):
        ratio = throughput_ratio(of, against, comparisons)
        widest, basis = ratio.alarm[1] / ratio.estimate, ratio.basis
    else:
        # A mean that may be 0, such as a short wait for data, can be any multiple of another one.
        sides = ours.interval, theirs.interval
        known = min(low for low, _ in sides) > 0
        widest = math.exp(math.hypot(*(math.log(high / low) / 2 for low, high in sides))) if known else math.inf
    return Uncertain((figure / widest, figure * widest), basis)  # on a logarithmic scale: the same for times and rates


def _compares_rows(claim: Claim) -> bool:
    """Whether the figure is a ratio as the report has one."""
    return claim.ratio is not None and claim.metric in THROUGHPUT


def _is_steady(metric: str) -> bool:
    """Whether one figure stands: a peak of memory does not vary from step to step, also where steps were disturbed."""
    return METRICS[metric].of_rank is not None and METRICS[metric] is not ENERGY


def _of_one(row: Row, metric: str, confidence: float) -> Uncertain | None:
    """Where one side lies."""
    value = value_of(row, metric)
    if _is_steady(metric):
        return None if value is None else Uncertain((value, value), None)
    if metric in THROUGHPUT:
        within = row.measured.half_width if row.measured else None
        return None if within is None or value is None else Uncertain(within.interval(value, confidence), within.basis)
    times = row.phases and row.phases.of(metric.removesuffix(PHASE))
    steps = mean_interval(times.samples_s, confidence) if times else None
    if steps is None:
        return None
    # That is the interval from the steps of one launch; another launch differs by more.
    known = row.measured.variation if row.measured else None
    between = known or ASSUMED
    mean, of_steps = sum(steps) / 2, (steps[1] - steps[0]) / 2
    half_width = math.hypot(of_steps, student_t(between.degrees, confidence) * between.sd * mean)
    return Uncertain((mean - half_width, mean + half_width), "variation" if known else "assumed")
