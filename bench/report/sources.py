"""Which results of a report other sources made than the newest result of the same workload. Pure."""

from collections.abc import Mapping, Sequence

from bench.records.outcome import Result
from bench.records.sources import Sources, differing
from bench.report.contract import RUN

Made = tuple[str, tuple[str, ...], str]
Newest = Mapping[Made, Sources]
"""By workload, by the command of a script, and by run where `merge_runs` keeps runs apart."""


def newest_sources(results: Sequence[Result]) -> Newest:
    """The sources of the newest result of each workload; results that do not know theirs count for nothing."""
    ordered = sorted(results, key=lambda result: result.started_at)
    return {_workload(result): result.sources for result in ordered if result.sources is not None}


def stale_files(result: Result, newest: Newest) -> tuple[str, ...]:
    """The source files in which ``result`` differs from the newest; none where its sources are not known."""
    return differing(result.sources, newest.get(_workload(result), {})) if result.sources is not None else ()


def _workload(result: Result) -> Made:
    """The name of a script is that of its file: two folders may have one train.py each."""
    cell = result.attempt.cell
    return cell.workload, cell.script.command if cell.script else (), str(result.axes.get(RUN, ""))
