"""What a report says, in order: `markdown` and `html` mark up the same sections."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import get_args

from pydantic import JsonValue

from bench.records.claim import Claim
from bench.records.outcome import Result
from bench.records.verdict import Probe
from bench.report import advice, claims, speedup, theory
from bench.report.contract import RUN
from bench.report.doubts import flags
from bench.report.rows import Summary
from bench.report.summary import summarize
from bench.report.tables import attempts
from bench.report.tables.attempts import Statistic, Table
from bench.report.tables.charts import charts
from bench.report.tables.figure import Chart
from bench.report.tables.header import files, header, method
from bench.report.tables.searches import verdicts

TITLE = "Training benchmark"
NOT_COMPARED = "Not compared"
DOUBTS = "Rows to doubt"


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Sentences, one a line."""

    title: str
    lines: tuple[str, ...]
    numbered: bool = False


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Names and their values. Without a title, they stand at the head of the report."""

    title: str
    facts: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = ()


Section = Lines | Facts | Table | Chart


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What a reader may ask a report to do otherwise."""

    axis: str = "backend"
    """What is compared."""
    reference: JsonValue = None
    """The axis' value that the others are set against; else the first."""
    allowed: frozenset[str] = frozenset()
    """Fields that may differ in a comparison all the same. Every figure made so says it."""
    claims: tuple[Claim, ...] = ()
    """What people expected beforehand."""


def report(results: Sequence[Result], probes: Sequence[Probe] = (), choices: Choices = Choices()) -> list[Section]:
    """The report of ``results``, by a reader's questions: what to run, what won, is it fair, what did we expect, how do
    I check. Tables without rows are left out."""
    if not results:
        return [Lines(title="", lines=("No results.",))]
    summary = summarize(results)
    drawn = charts(summary)
    sections: list[Section] = [
        Facts(title="", facts=tuple(header(summary))),
        *answer(summary, choices, probes),
        *(chart for chart in drawn if chart.name != "phases"),
        attempts.matrix(summary),
        verdicts(probes, summary),
        claims.table(claims.judge(summary, choices.claims)),
        Lines(title=DOUBTS, lines=tuple(flags(summary)) or ("None.",)),
        attempts.regimes(summary),
        theory.table(summary),
        attempts.steps(summary),
        *(chart for chart in drawn if chart.name == "phases"),
        *(attempts.phases(summary, statistic) for statistic in get_args(Statistic)),
        attempts.ranks(summary),
        Lines(title="How it was measured", lines=tuple(method(summary)), numbered=True),
        Facts(
            title="Where the results lie",
            facts=tuple(files(summary)),
            notes=(
                "Below the run's folder; b<batch>/result.json of a cell holds "
                + (
                    "the raw samples of every rank, and b<batch>/command.sh measures that row again by hand."
                    if summary.isolations
                    else "the figures as they were given."
                ),
            ),
        ),
    ]
    return [section for section in sections if not _empty(section)]


def answer(summary: Summary, choices: Choices, probes: Sequence[Probe]) -> list[Lines | Table]:
    """What to run, what is faster, and what was not compared: what most readers came for."""
    compared = speedup.compare(summary, choices.axis, reference=choices.reference, allowed=choices.allowed)
    faster = speedup.table(summary, compared)
    # Nobody who reports on one backend has asked for a comparison of backends.
    asked = choices.axis != Choices.axis or choices.reference is not None
    alone = speedup.nothing_varies(summary, choices.axis) if asked and not faster.rows else ()
    found: list[Lines | Table] = [
        Lines(title="What to run", lines=tuple(advice.sentences(summary, _advice(summary, probes)))),
        faster,
        Lines(title=faster.title, lines=alone),
        Lines(title=NOT_COMPARED, lines=tuple(speedup.refusals(summary, compared))),
    ]
    return [section for section in found if not _empty(section)]


def _advice(summary: Summary, probes: Sequence[Probe]) -> list[advice.Advice]:
    """Of each run by itself, where runs are told apart: a search answers for its own."""
    found, headrooms = [], {probe.goal.headroom for probe in probes}
    for run in {str(run): run for run in (cell.contract.get(RUN) for cell in summary.cells)}.values():
        cells = tuple(cell for cell in summary.cells if cell.contract.get(RUN) == run)
        own = [probe for probe in probes if probe.axes.get(RUN, run) == run]
        found += advice.advise(replace(summary, cells=cells), own, headrooms)
    return found


def _empty(section: Section) -> bool:
    match section:
        case Table(rows=()) | Lines(lines=()):
            return True
    return False
