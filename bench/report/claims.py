"""Claims against measurements: CONFIRMED, REFUTED or NOT TESTED, with the numbers. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bench.records.claim import METRICS, Claim
from bench.report.claim_sides import NotTestedError, Side, find_one, find_pair, named, words
from bench.report.doubts import doubted
from bench.report.rows import Row, Sampled, Summary
from bench.report.speedup import SpeedUp
from bench.report.tables.attempts import Table, caption, one_line
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
                words(each.claim.where) or "anywhere",
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
            side = find_one(summary, claim)
            value = _metric(side, claim)
            found = f"{_show(value, claim)} ({named(side, claim.of)})"
            return _verdict(claim, value, found + _noise(claim, value, side) + _doubt([side], doubts), value, None)
        of, against = find_pair(summary, claim, claim.against)
        ours, theirs = _metric(of, claim), _metric(against, claim)
    except NotTestedError as missing:
        return Judged(claim=claim, verdict="NOT TESTED", found=str(missing))
    found = " against ".join(
        f"{_show(value, claim)} ({named(side, claim.of)})" for value, side in ((ours, of), (theirs, against))
    )
    if claim.ratio and not theirs:
        return Judged(claim=claim, verdict="NOT TESTED", found=f"{found}: no ratio to 0")
    figure = ours / theirs if claim.ratio else ours - theirs
    sense = "more" if figure >= 0 else "less"
    result = in_unit(figure, "x") if claim.ratio else f"{_show(abs(figure), claim)} {sense}"
    noise = _noise(claim, figure, of, against)
    return _verdict(claim, figure, f"{found}: {result}{noise}{_doubt([of, against], doubts)}", ours, theirs)


def _noise(claim: Claim, figure: float, of: Side, against: Side | None = None) -> str:
    """Whether the scatter of steps leaves open on which side of a bound the figure lies."""
    interval = _interval(claim, figure, of, against) if claim.metric in TIMED else None
    if interval is None:
        return ""
    low, high = interval
    bounds = [_bound(claim, "at_least"), _bound(claim, "at_most")]
    if not any(bound is not None and low < bound < high for bound in bounds):
        return ""
    ends = f"{low:.2f} to {high:.2f}" if claim.ratio else f"{_show(low, claim)} to {_show(high, claim)}"
    return f"; within the noise of these steps ({ends})"


def _interval(claim: Claim, figure: float, of: Side, against: Side | None) -> tuple[float, float] | None:
    """Where the figure lies with 95 % confidence, both sides as if independent; None where one's is unknown."""
    if against is None:
        return _interval_of(of.row, claim)
    if claim.ratio:
        both = SpeedUp(reference=against.row, row=of.row, matched=False)
        if both.interval is None:
            return None
        widest = both.interval[1] / both.ratio  # on a logarithmic scale, so the same for times and for rates
        return figure / widest, figure * widest
    ours, theirs = _interval_of(of.row, claim), _interval_of(against.row, claim)
    if ours is None or theirs is None:
        return None
    half = math.hypot(*((high - low) / 2 for low, high in (ours, theirs)))
    return figure - half, figure + half


def _interval_of(row: Row, claim: Claim) -> tuple[float, float] | None:
    if not isinstance(row.measured, Sampled) or row.measured.interval is None:
        return None
    low, high = row.measured.interval
    return (low, high) if claim.metric == "samples_per_s" else (row.batch_global / high, row.batch_global / low)


def _doubt(sides: Sequence[Side], doubts: frozenset[int]) -> str:
    return "; a row of it is doubted" if any(id(side.row) in doubts for side in sides) else ""


def _bound(claim: Claim, end: Literal["at_least", "at_most"]) -> float | None:
    text: float | str | None = getattr(claim.bounds, end)
    return None if text is None else quantity(text, claim.kind)[0]


def _verdict(claim: Claim, figure: float, found: str, ours: float, theirs: float | None) -> Judged:
    least, most = _bound(claim, "at_least"), _bound(claim, "at_most")
    holds = (least is None or figure >= least) and (most is None or figure <= most)
    verdict: Verdict = "CONFIRMED" if holds else "REFUTED"
    return Judged(claim=claim, verdict=verdict, found=found, of_value=ours, against_value=theirs, figure=figure)


def _metric(side: Side, claim: Claim) -> float:
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
        raise NotTestedError(f"{caption(claim.metric)} is not known of {named(side, claim.of)}")
    return found


def _unit(claim: Claim, kind: Kind) -> str:
    """That of the claim where it is of this kind; else one that reads well."""
    if claim.kind == kind:
        for end in (claim.bounds.at_least, claim.bounds.at_most):
            if isinstance(end, str):
                return quantity(end, kind)[1]
    return {"bytes": "GiB", "s": "ms", "samples/s": "samples/s", "ratio": "%"}[kind]


def _show(value: float, claim: Claim) -> str:
    kind = METRICS[claim.metric]
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
