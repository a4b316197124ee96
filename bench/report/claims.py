"""Claims against measurements: CONFIRMED, REFUTED or NOT TESTED, with the numbers. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal, NamedTuple

from pydantic import JsonValue

from bench.claim import KINDS, Claim
from bench.errors import near_miss
from bench.report.comparison import SpeedUp
from bench.report.contract import differing
from bench.report.flags import doubted
from bench.report.rows import CellRows, Row, Summary
from bench.report.tables import Table, caption, one_line, setting
from bench.units import Kind, in_unit, quantity

Verdict = Literal["CONFIRMED", "REFUTED", "NOT TESTED"]

TIMED = ("samples_per_s", "step_time_s")
"""Metrics whose scatter is known."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One claim, and what the results say to it."""

    claim: Claim
    verdict: Verdict
    found: str
    """The numbers in words; for NOT TESTED what is missing, or which fields differ."""
    of_value: float | None = None
    """In base units, as all three."""
    against_value: float | None = None
    figure: float | None = None
    """The difference, the ratio or the value that was claimed."""


class _Side(NamedTuple):
    """A row that a side of a claim names."""

    cell: CellRows
    row: Row


class _NotTestedError(Exception):
    """Why a claim cannot be judged."""


def judge(summary: Summary, claims: Sequence[Claim]) -> list[Judged]:
    """Each claim against the results. Two sides are only compared when they agree in all but the fields of ``of``."""
    doubts = doubted(summary) if claims else frozenset[int]()
    return [_judge(summary, claim, doubts) for claim in claims]


def table(judged: Sequence[Judged]) -> Table:
    """What was expected, what was found, and the verdict."""
    return Table(
        title="Claims",
        headers=("claim", "where", "expected", "found", "verdict"),
        rows=tuple(
            (
                one_line(each.claim.say),
                _words(each.claim.where) or "anywhere",
                _expected(each.claim),
                one_line(each.found),
                each.verdict,
            )
            for each in judged
        ),
        numeric=frozenset(),
        bold=frozenset((index, "verdict") for index in range(len(judged))),
        notes=(
            "Stated by people; the expectation is the typed one. Both sides agree in everything but what is compared,"
            " else a claim is NOT TESTED. The verdict is of the figures as they are; within the noise: their 95 %"
            " interval holds the bound, so measured again it may be the other. GB is 10^9 bytes, GiB 2^30.",
        ),
    )


def _judge(summary: Summary, claim: Claim, doubts: frozenset[int]) -> Judged:
    try:
        if claim.against is None:
            side = _only(list(_sides(summary, claim, claim.of)), claim.of)
            value = _metric(side, claim)
            found = f"{_show(value, claim)} ({_named(side, claim.of)}){_doubt([side], doubts)}"
            return _verdict(claim, value, found, value, None)
        of, against = _pair(summary, claim, claim.against)
        ours, theirs = _metric(of, claim), _metric(against, claim)
    except _NotTestedError as missing:
        return Judged(claim=claim, verdict="NOT TESTED", found=str(missing))
    sides = " against ".join(
        f"{_show(value, claim)} ({_named(side, claim.of)})" for value, side in ((ours, of), (theirs, against))
    )
    doubt = _doubt([of, against], doubts)
    if claim.ratio:
        if not theirs:
            return Judged(claim=claim, verdict="NOT TESTED", found=f"{sides}: no ratio to 0")
        figure = ours / theirs
        noise = _noise(claim, of, against, figure)
        return _verdict(claim, figure, f"{sides}: {in_unit(figure, 'x')}{noise}{doubt}", ours, theirs)
    figure = ours - theirs
    sense = "more" if figure >= 0 else "less"
    return _verdict(claim, figure, f"{sides}: {_show(abs(figure), claim)} {sense}{doubt}", ours, theirs)


def _noise(claim: Claim, of: _Side, against: _Side, ratio: float) -> str:
    """Whether the scatter of steps leaves open on which side of a bound the ratio lies."""
    pair = SpeedUp(reference=against.row, row=of.row, matched=False)
    if claim.metric not in TIMED or pair.interval is None:
        return ""
    widest = pair.interval[1] / pair.ratio  # on a logarithmic scale, so the same for times and for rates
    low, high = ratio / widest, ratio * widest
    if not any(low < bound < high for bound in (_bound(claim, "at_least"), _bound(claim, "at_most")) if bound):
        return ""
    return f"; within the noise of these steps ({low:.2f} to {high:.2f})"


def _doubt(sides: Sequence[_Side], doubts: frozenset[int]) -> str:
    return "; a row of it is doubted" if any(id(side.row) in doubts for side in sides) else ""


def _bound(claim: Claim, end: Literal["at_least", "at_most"]) -> float | None:
    text: float | str | None = getattr(claim.bounds, end)
    return None if text is None else quantity(text, claim.kind)[0]


def _verdict(claim: Claim, figure: float, found: str, ours: float, theirs: float | None) -> Judged:
    least, most = _bound(claim, "at_least"), _bound(claim, "at_most")
    holds = (least is None or figure >= least) and (most is None or figure <= most)
    verdict: Verdict = "CONFIRMED" if holds else "REFUTED"
    return Judged(claim=claim, verdict=verdict, found=found, of_value=ours, against_value=theirs, figure=figure)


def _pair(summary: Summary, claim: Claim, against: Mapping[str, JsonValue]) -> tuple[_Side, _Side]:
    """The two sides that agree in all but the compared fields.

    Raises:
        _NotTestedError: there are none, or several.
    """
    ours, theirs = list(_sides(summary, claim, claim.of)), list(_sides(summary, claim, against))
    pairs = sorted(
        ((_unlike(one, other, claim), one, other) for one, other in product(ours, theirs)),
        key=lambda pair: len(pair[0]),
    )
    alike = [(one, other) for fields, one, other in pairs if not fields]
    if not alike:
        raise _NotTestedError(f"the two sides differ in {', '.join(pairs[0][0])} too")
    if len(alike) > 1:
        _only([one for one, _ in alike], claim.of)
        _only([other for _, other in alike], against)
    return alike[0]


def _unlike(one: _Side, other: _Side, claim: Claim) -> tuple[str, ...]:
    compared = [*claim.of, *_FOLLOW_THE_BACKEND] if "backend" in claim.of else list(claim.of)
    fields = [
        name for name in differing(one.cell.contract, other.cell.contract, but=compared[0]) if name not in compared
    ]
    any_batch = "batch" in claim.of or claim.where.get("batch") == "best"
    same_batch = any_batch or one.row.batch_per_rank == other.row.batch_per_rank
    return (*fields, *([] if same_batch else ["batch"]))


_FOLLOW_THE_BACKEND = ("masters_dtype", "optimizer_dtype")


def _sides(summary: Summary, claim: Claim, side: Mapping[str, JsonValue]) -> Iterator[_Side]:
    """The measured rows that one side names.

    Raises:
        _NotTestedError: there is none, and why.
    """
    wanted = {**claim.where, **side}
    cells = [cell for cell in summary.cells if _fits(cell, wanted)]
    if not cells:
        raise _NotTestedError(_no_cell(summary, wanted))
    batch = wanted.get("batch")
    if batch == "best":
        found = [_Side(cell, cell.best) for cell in cells if cell.best]
    else:
        found = [_Side(cell, row) for cell in cells for row in cell.rows if batch in (None, row.batch_per_rank)]
    measured = [one for one in found if one.row.measured]
    if not measured:
        outcomes = dict.fromkeys(one.row.outcome for one in found)
        raise _NotTestedError(f"{_words(wanted)}: {', '.join(outcomes) or 'no such batch was measured'}")
    yield from measured


def _fits(cell: CellRows, wanted: Mapping[str, JsonValue]) -> bool:
    return all(_same(cell.contract.get(name), value) for name, value in wanted.items() if name != "batch")


def _same(one: JsonValue, other: JsonValue) -> bool:
    # In Python 1 == True.
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _no_cell(summary: Summary, wanted: Mapping[str, JsonValue]) -> str:
    """Which of the conditions no result meets."""
    known = list(dict.fromkeys(name for cell in summary.cells for name in cell.contract))
    for name in wanted:
        if name != "batch" and name not in known:
            return " ".join(
                filter(None, [f"no result has a field {name}:", near_miss(name, known) or "see the matrix"])
            )
    for name, value in wanted.items():
        if name != "batch" and not any(_fits(cell, {name: value}) for cell in summary.cells):
            return f"no result has {_words({name: value})}"
    return f"no result has {_words(wanted)}"


def _only(sides: Sequence[_Side], named: Mapping[str, JsonValue]) -> _Side:
    """The one row.

    Raises:
        _NotTestedError: there are several; says in what they differ.
    """
    distinct = {(side.cell.cell.id, side.row.batch_per_rank): side for side in sides}
    first, *others = distinct.values()
    if not others:
        return first
    fields = dict.fromkeys(
        name
        for other in others
        for name in (
            *differing(first.cell.contract, other.cell.contract, but=""),
            *(["batch"] if first.row.batch_per_rank != other.row.batch_per_rank else []),
        )
    )
    raise _NotTestedError(f"{len(distinct)} results are {_words(named)}: say in `where` which {', '.join(fields)}")


def _metric(side: _Side, claim: Claim) -> float:
    measured = side.row.measured
    assert measured is not None
    found: float | None
    match claim.metric:
        case "peak_allocated_bytes":
            found = measured.peak_allocated_bytes_rank_max
        case "peak_reserved_bytes":
            found = measured.peak_reserved_bytes_rank_max
        case "capacity_share":
            found = measured.capacity_share_rank_max
        case "step_time_s":
            found = measured.step_time_s_rank_max
        case "samples_per_s":
            found = measured.samples_per_s_global
        case "total":
            found = measured.total_s
        case phase:
            known = measured.phases.parts.get(phase) if measured.phases else None
            found = known.mean_s if known else None
    if found is None:
        raise _NotTestedError(f"{caption(claim.metric)} is not known of {_named(side, claim.of)}")
    return found


def _named(side: _Side, by: Mapping[str, JsonValue]) -> str:
    named = [
        str(side.cell.contract[name]) if name == "backend" else f"{name} {setting(name, side.cell.contract.get(name))}"
        for name in by
        if name != "batch"
    ]
    return ", ".join([*named, f"batch {side.row.batch_per_rank}"])


def _words(settings: Mapping[str, JsonValue]) -> str:
    return ", ".join(
        str(value) if name == "backend" else f"{caption(name)} {setting(name, value)}"
        for name, value in settings.items()
    )


def _unit(claim: Claim, kind: Kind) -> str:
    """That of the claim where it is of this kind; else one that reads well."""
    if claim.kind == kind:
        for end in (claim.bounds.at_least, claim.bounds.at_most):
            if isinstance(end, str):
                return quantity(end, kind)[1]
    return {"bytes": "GiB", "s": "ms", "samples/s": "samples/s", "ratio": "%"}[kind]


def _show(value: float, claim: Claim) -> str:
    kind = KINDS.get(claim.metric, "s")
    if claim.ratio:
        return in_unit(value, {"bytes": "GiB", "s": "ms", "samples/s": "samples/s", "ratio": "%"}[kind])
    return in_unit(value, _unit(claim, kind))


def _expected(claim: Claim) -> str:
    """``difference at least 11 GB``."""
    name = "difference" if claim.difference else "ratio" if claim.ratio else "value"
    unit = "x" if claim.ratio else _unit(claim, claim.kind)
    ends = [("at least", claim.bounds.at_least), ("at most", claim.bounds.at_most)]
    texts = [f"{word} {in_unit(quantity(end, claim.kind)[0], unit)}" for word, end in ends if end is not None]
    return f"{caption(claim.metric)}, {name} {' and '.join(texts)}"
