"""What a report says, in order. The renderers mark up the same sections."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import PurePath
from typing import get_args

from pydantic import JsonValue

from bench.records.best import Best
from bench.records.calibration import Calibration
from bench.records.claim import Claim
from bench.records.forecast import Forecast
from bench.records.outcome import Result
from bench.records.plan import COST_OPTIONS
from bench.records.sources import LastCommand
from bench.records.until import Until
from bench.records.verdict import Probe
from bench.report.advice import CHOICES, Advice, Certified, advise_by_run
from bench.report.claims import Judged, judge_claims, uncertain
from bench.report.merge_runs import runs_by_time
from bench.report.missing import Missing
from bench.report.plan import Checked, check
from bench.report.rows import Summary
from bench.report.speedup import Comparison, compare_axis
from bench.report.summary import Newest, newest_sources, summarize
from bench.report.tables.account import account
from bench.report.tables.advice import Matrices, advice_sentences, missing_of
from bench.report.tables.best import certificates
from bench.report.tables.brief import (
    MOST_SETTINGS,
    Setting,
    answer_section,
    caveats,
    measured_how,
    settings,
    settings_table,
)
from bench.report.tables.charts import charts
from bench.report.tables.claims import claims_table
from bench.report.tables.details import Details, details
from bench.report.tables.doubts import doubts_section
from bench.report.tables.export import Record, records
from bench.report.tables.figure import Chart
from bench.report.tables.header import files, header, method, not_measured, until_options
from bench.report.tables.plan import check_table, columns, verdict
from bench.report.tables.raw_matrix import matrix
from bench.report.tables.regimes import regimes
from bench.report.tables.searches import searches
from bench.report.tables.show import Files
from bench.report.tables.speedup import speedup_sections
from bench.report.tables.steps import Statistic, checkpoints, compilation, own_work, phases, ranks, steps
from bench.report.tables.table import Facts, Lines, Table
from bench.report.tables.theory import communication_table, theory, utilization_table

TITLE = "Training benchmark"

Section = Lines | Facts | Table | Chart


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What a reader may change about a report."""

    axis: str = "backend"
    """What is compared."""
    reference: JsonValue = None
    """The axis' value to compare the others with; by default the first one."""
    allowed: frozenset[str] = frozenset()
    """Fields that may differ in a comparison, too. Every figure that depends on this says so."""
    claims: tuple[Claim, ...] = ()
    """What people expected beforehand."""
    free: frozenset[str] = CHOICES
    """Settings of which the advice picks the best value; the others are requirements, with one answer each."""

    @property
    def compares(self) -> bool:
        """Whether the reader asked for a comparison. A report on one backend is no request to compare backends."""
        return self.axis != Choices.axis or self.reference is not None or bool(self.allowed)


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
    calibrations: Sequence[Calibration] = ()
    """What `bench calibrate` learnt about the machines of these runs."""
    logs: Mapping[str, Files] = field(default_factory=dict)
    """The logs of attempts that failed, by the attempt's slug; empty for several runs."""
    scripts: bool = True
    """Whether the folders of the results hold command.sh; a kept copy may not."""
    folder: PurePath | None = field(default_factory=PurePath)
    """The run's folder, from the folder of the page; None for several runs."""
    untils: Sequence[Until] = ()
    """How `bench run --until` ended, for each run that was asked to go on."""
    bests: Mapping[str, Best] = field(default_factory=dict)
    """How `bench run --best` ended, for each run that did not measure its whole matrix."""
    forecasts: Mapping[str, Forecast] = field(default_factory=dict)
    """The plans that these runs keep, by the cell's id."""
    cost_options: Iterable[str] = COST_OPTIONS
    """Fields of the workloads of these runs that change what a step costs, and not its losses."""
    matrices: Matrices = field(default_factory=dict)
    """The matrices that these runs keep, for the commands of the advice."""

    last: Mapping[str, LastCommand] = field(default_factory=dict)
    """The last command of each run, by the run's name."""

    @cached_property
    def newest(self) -> Newest:
        return newest_sources(self.results, self.last)

    @cached_property
    def summary(self) -> Summary:
        return summarize(self.results, self.calibrations, self.newest, self.cost_options)

    @cached_property
    def advice(self) -> Sequence[Advice]:
        certified = {
            run: {
                (answer.cell, answer.batch_per_rank): Certified(answer, best.confidence)
                for answer in best.answers
                if best.ended
            }
            for run, best in self.bests.items()
        }
        beside = self._comparison.pairs | uncertain(self.summary, self.choices.claims)
        advice = advise_by_run(self.summary, self.probes, self.choices.free, certified, beside)
        return [replace(task, missing=missing_of(task, self.matrices, self.missing)) for task in advice]

    @cached_property
    def _comparison(self) -> Comparison:
        choices = self.choices
        return compare_axis(self.summary, choices.axis, reference=choices.reference, allowed=choices.allowed)

    @cached_property
    def comparisons(self) -> int:
        """How many figures are judged together: see `Advice.comparisons`."""
        return max((task.comparisons for task in self.advice), default=self._comparison.comparisons)

    @cached_property
    def comparison(self) -> Comparison:
        return self._comparison.judged_with(self.comparisons)

    @cached_property
    def judged(self) -> Sequence[Judged]:
        return judge_claims(self.summary, self.choices.claims, self.comparisons)

    @cached_property
    def settings(self) -> Sequence[Setting]:
        return settings(self.summary, self.advice)

    @cached_property
    def charts(self) -> Sequence[Chart]:
        return charts(self.summary, self.settings, runs_by_time(self.results))

    @cached_property
    def sections(self) -> list[Section]:
        """All sections that are not empty, in the order of `SECTIONS`."""
        return self._build([part.full for part in SECTIONS if self.results or part.without_results])

    @cached_property
    def page(self) -> list[Section]:
        """The sections of the page."""
        return self._build([part.full for part in SECTIONS if part.on_page and (self.results or part.without_results)])

    @cached_property
    def brief(self) -> list[Section]:
        """The short report: what `bench run` ends with, and what goes into a pull request."""
        return self.cut(MOST_SETTINGS)

    def cut(self, rows: int, lines: int | None = None, *, intervals: bool = True) -> list[Section]:
        """The short report with at most so many rows of the table of settings, and lines of each other part."""
        if not self.results:
            return self._build([_missing])
        parts: list[Section] = [
            answer_section(self.summary, self.advice, self.matrices, self.missing),
            certificates(self.bests.values(), self.advice),
            settings_table(self.summary, self.settings, self.probes, most=rows, intervals=intervals),
            *(_compared(self) if self.choices.compares else ()),
            caveats(self.summary, self.advice, self.missing, self.unreadable, self.judged, self.probes, self.untils),
        ]
        shown = [part.first(lines) if lines and isinstance(part, Lines) else part for part in parts]
        options = [*(best.options for best in self.bests.values()), *map(until_options, self.untils)]
        asked = "".join(options)  # several runs have no such line
        how = measured_how(self.summary, self.settings, self.matrices, asked=asked, short=lines is not None)
        return [part for part in (*shown, how) if not _empty(part)]

    @cached_property
    def details(self) -> Sequence[Details]:
        """What each row of the table of settings opens on the page."""
        shown = self.settings[:MOST_SETTINGS]
        logs, newest = self.logs, self.newest
        return [
            details(self.summary, each, self.results, logs, newest, self.folder, scripts=self.scripts) for each in shown
        ]

    @cached_property
    def checked(self) -> Sequence[Checked]:
        """What was measured beside its plan; empty without a plan."""
        known = [one.rates for one in self.calibrations if one.rates]
        rates = known[0] if known and len(self.summary.machines) == 1 else None
        return check(self.summary, self.forecasts, rates)

    @cached_property
    def records(self) -> list[Record]:
        """One flat record a result, for other programs."""
        planned = columns(self.checked)
        rows = zip(self.summary.rows, records(self.summary), strict=True)
        return [record | planned.get(row.id, {}) for row, record in rows]

    def _build(self, parts: Iterable["Build"]) -> list[Section]:
        return [section for part in parts for section in part(self) if not _empty(section)]


Build = Callable[[Report], Iterable[Section]]


@dataclass(frozen=True)
class Part:
    """One entry of the table of contents."""

    full: Build
    without_results: bool = False
    """Whether it has something to say without a single result."""
    on_page: bool = True
    """Whether the page has it too. Else a chart or `Report.details` shows there what most readers need of it."""


def _answer(report: Report) -> Iterator[Section]:
    """What to run, what is faster, and what was not compared: what most readers look for."""
    sentences = advice_sentences(report.summary, report.advice, report.matrices)
    yield Lines(title="What to run", lines=tuple(sentences))
    yield certificates(report.bests.values(), report.advice)
    yield from _compared(report)


def _compared(report: Report) -> Iterator[Section]:
    yield from speedup_sections(report.summary, report.comparison, requested=report.choices.compares)


def _missing(report: Report) -> list[Section]:
    return [not_measured(report.missing, report.unreadable)]


def _plan(report: Report) -> list[Section]:
    table = check_table(report.checked)
    return [replace(table, notes=(verdict(report.checked), *table.notes))]


SECTIONS: tuple[Part, ...] = (
    Part(lambda report: [] if report.results else [Lines(title="", lines=("No results.",))], without_results=True),
    Part(lambda report: [header(report.summary, report.untils)]),
    Part(_answer),
    Part(_missing, without_results=True),
    Part(lambda report: [chart for chart in report.charts if chart.name != "phases"]),
    Part(lambda report: [matrix(report.summary)]),
    Part(lambda report: [searches(report.probes, report.summary)]),
    Part(lambda report: [claims_table(report.judged)]),
    Part(lambda report: [doubts_section(report.summary)]),
    Part(lambda report: [regimes(report.summary)]),
    Part(lambda report: [utilization_table(report.summary)]),
    Part(lambda report: [theory(report.summary)]),
    Part(_plan),
    Part(lambda report: [communication_table(report.summary)]),
    Part(lambda report: [steps(report.summary)]),
    Part(lambda report: [chart for chart in report.charts if chart.name == "phases"]),
    Part(lambda report: [phases(report.summary, "mean")]),
    Part(
        lambda report: [phases(report.summary, each) for each in get_args(Statistic) if each != "mean"], on_page=False
    ),
    Part(lambda report: [own_work(report.summary)], on_page=False),
    Part(lambda report: [ranks(report.summary)]),
    Part(lambda report: [compilation(report.summary)]),
    Part(lambda report: [checkpoints(report.summary)]),
    Part(lambda report: [account(report.summary)]),
    Part(lambda report: [method(report.summary)]),
    Part(lambda report: [files(report.summary, scripts=report.scripts)]),
)
"""The table of contents, by a reader's questions: what to run, what is faster, is it fair, what did we expect, how do I
check. Markdown, HTML and the terminal all follow it. A new section is a file beside this one and a line here."""


def _empty(section: Section) -> bool:
    match section:
        case Table(rows=()) | Lines(lines=()):
            return True
    return False
