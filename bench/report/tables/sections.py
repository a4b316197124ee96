"""What a report says, in order: `markdown` and `html` mark up the same sections."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import get_args

from pydantic import JsonValue

from bench.records.claim import Claim
from bench.records.outcome import Result
from bench.records.verdict import Probe
from bench.report import advice, claims, speedup, theory
from bench.report.contract import RUN
from bench.report.doubts import flags
from bench.report.missing import Missing
from bench.report.rows import Summary
from bench.report.summary import summarize
from bench.report.tables import attempts
from bench.report.tables.attempts import Statistic, Table
from bench.report.tables.charts import charts
from bench.report.tables.figure import Chart
from bench.report.tables.header import files, header, method
from bench.report.tables.missing import not_measured
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


@dataclass(frozen=True, kw_only=True, eq=False)
class Report:
    """What a report is about. The sections, and what several of them share, are computed once."""

    results: Sequence[Result]
    probes: Sequence[Probe] = ()
    choices: Choices = Choices()
    missing: Sequence[Missing] = ()
    """Planned and not measured yet; see `bench.report.missing`."""
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """Files of the runs that cannot be read, and what is wrong with each."""
    scripts: bool = True
    """Whether the folders of the results hold command.sh; a kept copy may not."""

    @cached_property
    def summary(self) -> Summary:
        return summarize(self.results)

    @cached_property
    def charts(self) -> Sequence[Chart]:
        return charts(self.summary)

    @cached_property
    def sections(self) -> list[Section]:
        """All sections that have something to say, in the order of `SECTIONS`."""
        if not self.results:
            nothing: list[Section] = [
                Lines(title="", lines=("No results.",)),
                not_measured(self.missing, self.unreadable),
            ]
            return [section for section in nothing if not _empty(section)]
        return [section for part in SECTIONS for section in part.full(self) if not _empty(section)]

    @cached_property
    def brief(self) -> list[Section]:
        """The main sections: what `bench run` ends with, and `bench report` on a terminal. Empty without results."""
        if not self.results:
            return []
        parts = [part.brief for part in SECTIONS if part.brief]
        return [section for build in parts for section in build(self) if not _empty(section)]


@dataclass(frozen=True)
class Part:
    """One entry of the table of contents: a function that builds its sections, and the short form if there is one."""

    full: Callable[[Report], Iterable[Section]]
    brief: Callable[[Report], Iterable[Section]] | None = None


def answer(report: Report) -> Iterator[Section]:
    """What to run, what is faster, and what was not compared: what most readers came for."""
    summary, choices = report.summary, report.choices
    compared = speedup.compare(summary, choices.axis, reference=choices.reference, allowed=choices.allowed)
    faster = speedup.table(summary, compared)
    # Nobody who reports on one backend has asked for a comparison of backends.
    requested = choices.axis != Choices.axis or choices.reference is not None
    alone = speedup.nothing_varies(summary, choices.axis) if requested and not faster.rows else ()
    yield Lines(title="What to run", lines=tuple(advice.sentences(summary, _advice(summary, report.probes))))
    yield faster
    yield Lines(title=faster.title, lines=alone)
    yield Lines(title=NOT_COMPARED, lines=tuple(speedup.refusals(summary, compared)))


def _doubts(report: Report) -> list[Section]:
    return [Lines(title=DOUBTS, lines=tuple(flags(report.summary)))]


def _not_measured(report: Report) -> list[Section]:
    return [not_measured(report.missing, report.unreadable)]


def _below_the_folder(report: Report) -> str:
    if not report.summary.isolations:
        holds = "the figures as they were given."
    elif report.scripts:
        holds = "the raw samples of every rank, and b<batch>/command.sh measures that row again by hand."
    else:
        holds = "the raw samples of every rank."
    return f"Below the run's folder; b<batch>/result.json of a cell holds {holds}"


SECTIONS: tuple[Part, ...] = (
    Part(lambda report: [Facts(title="", facts=tuple(header(report.summary)))]),
    Part(answer, brief=answer),
    Part(_not_measured, brief=_not_measured),
    Part(lambda report: [chart for chart in report.charts if chart.name != "phases"]),
    Part(lambda report: [attempts.matrix(report.summary)], brief=lambda report: [attempts.matrix(report.summary)]),
    Part(
        lambda report: [verdicts(report.probes, report.summary)],
        brief=lambda report: [verdicts(report.probes, report.summary)],
    ),
    Part(
        lambda report: [claims.table(claims.judge(report.summary, report.choices.claims))],
        brief=lambda report: [claims.table(claims.judge(report.summary, report.choices.claims))],
    ),
    Part(lambda report: [Lines(title=DOUBTS, lines=tuple(flags(report.summary)) or ("None.",))], brief=_doubts),
    Part(lambda report: [attempts.regimes(report.summary)]),
    Part(lambda report: [theory.table(report.summary)]),
    Part(lambda report: [attempts.steps(report.summary)]),
    Part(lambda report: [chart for chart in report.charts if chart.name == "phases"]),
    Part(
        lambda report: [attempts.phases(report.summary, statistic) for statistic in get_args(Statistic)],
        brief=lambda report: [attempts.phases(report.summary, statistic) for statistic in ("mean", "share")],
    ),
    Part(lambda report: [attempts.ranks(report.summary)]),
    Part(lambda report: [Lines(title="How it was measured", lines=tuple(method(report.summary)), numbered=True)]),
    Part(
        lambda report: [
            Facts(
                title="Where the results lie",
                facts=tuple(files(report.summary)),
                notes=(_below_the_folder(report),),
            )
        ]
    ),
)
"""The table of contents. The Markdown report, the HTML page and the terminal all follow it."""


def report(
    results: Sequence[Result],
    probes: Sequence[Probe] = (),
    choices: Choices = Choices(),
    missing: Sequence[Missing] = (),
) -> list[Section]:
    """The sections of a report. They follow a reader's questions: what to run, what won, is it fair, what did we
    expect, how do I check."""
    return Report(results=results, probes=probes, choices=choices, missing=missing).sections


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
