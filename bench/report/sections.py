"""What a report says, in order: `markdown` and `html` mark up the same sections."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from bench.outcome import Result
from bench.probe import Probe
from bench.report import tables
from bench.report.charts import charts
from bench.report.figure import Chart
from bench.report.flags import flags
from bench.report.header import files, header, method
from bench.report.summary import summarize
from bench.report.tables import Statistic, Table

TITLE = "Training benchmark"


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


def report(results: Sequence[Result], probes: Sequence[Probe] = ()) -> list[Section]:
    """The report of ``results``. Tables without rows are left out."""
    if not results:
        return [Lines(title="", lines=("No results.",))]
    summary = summarize(results)
    drawn = charts(summary)
    sections: list[Section] = [
        Facts(title="", facts=tuple(header(summary))),
        *(chart for chart in drawn if chart.name != "phases"),
        tables.matrix(summary),
        tables.verdicts(probes),
        Lines(title="Rows to doubt", lines=tuple(flags(summary)) or ("None.",)),
        tables.regimes(summary),
        tables.steps(summary),
        *(chart for chart in drawn if chart.name == "phases"),
        *(tables.phases(summary, statistic) for statistic in get_args(Statistic)),
        tables.ranks(summary),
        Lines(title="How it was measured", lines=tuple(method(summary)), numbered=True),
        Facts(
            title="Where the results lie",
            facts=tuple(files(summary)),
            notes=("Below the run's folder; b<batch>/result.json of a cell holds the raw samples of every rank.",),
        ),
    ]
    return [section for section in sections if not (isinstance(section, Table) and not section.rows)]
