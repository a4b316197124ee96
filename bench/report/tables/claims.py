"""The section of claims: what was expected, what was found, and the verdict."""

from collections.abc import Sequence

from bench.errors import one_line
from bench.records.claim import Claim
from bench.records.figures import METRICS
from bench.report.claims import Judged, bound, side_name
from bench.report.naming import caption, ends, settings_name
from bench.report.tables.table import Column, Table, table_of
from bench.statistics.launches import ASSUMED
from bench.statistics.ratio import ALARM_CONFIDENCE
from bench.statistics.verdict import MORE_LAUNCHES
from bench.units import Kind, in_unit, percent, quantity

UNITS: dict[Kind, str] = {
    "bytes": "GiB",
    "s": "ms",
    "samples/s": "samples/s",
    "J/sample": "J/sample",
    "ratio": "%",
    "count": "",
}
"""Shown where the claim names no unit."""


def claims_table(judged: Sequence[Judged]) -> Table:
    """One row a claim."""
    return table_of(
        "Claims",
        judged,
        [
            Column("claim", lambda judged: one_line(judged.claim.say)),
            Column("where", lambda judged: settings_name(judged.claim.where, judged.claim.where) or "anywhere"),
            Column("expected", lambda judged: _expected(judged.claim)),
            Column("found", lambda judged: one_line(finding(judged))),
            # It stands out if it decides, and not by bare figures.
            Column(
                "verdict",
                lambda judged: judged.verdict,
                bold=lambda judged: judged.verdict != "UNDECIDED" and not _noise_unknown(judged),
            ),
        ],
        notes=(
            "`claim` is the author's sentence, and `expected` is the bound that bench checked. Both sides agree in"
            " everything except what is compared; otherwise a claim is NOT TESTED. UNDECIDED: a bound lies in the"
            " interval of the figure, so a rerun could decide either way, a row is doubted, or launches are of"
            " different sources. CONFIRMED, REFUTED: it"
            f" does not, with {percent(ALARM_CONFIDENCE)} confidence for all claims together. GB is 10^9 bytes, GiB"
            " 2^30.",
            *([UNKNOWN_NOISE] if any(map(_noise_unknown, judged)) else []),
            *([ASSUMED_NOISE] if any(each.basis == "assumed" for each in judged) else []),
        ),
    )


UNKNOWN_NOISE = "one figure, variation unknown: of one side. The verdict is that of the bare figures, and not bold."
ASSUMED_NOISE = (
    "noise assumed: how much launches vary is unknown, so the interval assumes a standard deviation of"
    f" {percent(ASSUMED.sd)}. `bench run` with {MORE_LAUNCHES}, or `bench calibrate`, measures it."
)


def finding(judged: Judged) -> str:
    """The numbers in words; for NOT TESTED what is missing, or which fields differ."""
    claim, sides = judged.claim, [(judged.of, judged.of_value), (judged.against, judged.against_value)]
    values = " against ".join(
        f"{_show(value, claim)} ({side_name(side, claim.of)})" for side, value in sides if side and value is not None
    )
    if judged.figure is None:
        return ": ".join(filter(None, (values, judged.missing)))
    result = f": {_result(claim, judged.figure)}" if judged.against else ""
    doubt = "; a row of it is doubted" if judged.doubted else ""
    return f"{values}{result}{_noise(judged)}{doubt}"


def _result(claim: Claim, figure: float) -> str:
    if claim.ratio:
        return in_unit(figure, "x")
    return f"{_show(abs(figure), claim)} {'more' if figure >= 0 else 'less'}"


def _noise(judged: Judged) -> str:
    if _noise_unknown(judged):
        return "; one figure, variation unknown"
    assumed = "noise assumed" if judged.basis == "assumed" else ""
    if judged.basis == "mixed sources":
        return "; launches are of different sources"
    if judged.interval is None or not judged.within_noise:
        return f"; {assumed}" if assumed else ""
    low, high = judged.interval
    claim = judged.claim
    within = ends(judged.interval) if claim.ratio else f"{_show(low, claim)} to {_show(high, claim)}"
    return f"; within the noise ({', '.join(filter(None, [within, assumed]))})"


def _noise_unknown(judged: Judged) -> bool:
    return judged.figure is not None and judged.interval is None


def _unit(claim: Claim, kind: Kind) -> str:
    """The claim's own unit where it is of this kind; otherwise the usual one."""
    if claim.kind == kind:
        for end in (claim.bounds.at_least, claim.bounds.at_most):
            if isinstance(end, str):
                return quantity(end, kind)[1]
    return UNITS[kind]


def _show(value: float, claim: Claim) -> str:
    kind = METRICS[claim.metric].kind
    return in_unit(value, UNITS[kind] if claim.ratio else _unit(claim, kind))


def _expected(claim: Claim) -> str:
    """``difference at least 11 GB``."""
    name = "difference" if claim.difference else "ratio" if claim.ratio else "value"
    unit = "x" if claim.ratio else _unit(claim, claim.kind)
    bounds = [("at least", bound(claim, "at_least")), ("at most", bound(claim, "at_most"))]
    texts = [f"{word} {in_unit(end, unit)}" for word, end in bounds if end is not None]
    return f"{caption(METRICS[claim.metric].short)}, {name} {' and '.join(texts)}"
