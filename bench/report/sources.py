"""Which results of a report other sources made than the newest of the same workload. Pure."""

from collections.abc import Mapping, Sequence

from bench.records.outcome import Result
from bench.records.sources import LastCommand, Sources, differing
from bench.report.contract import RUN

Made = tuple[str, tuple[str, ...], str]
Newest = Mapping[Made, Sources]
"""By workload, by the command of a script, and by run where `merge_runs` keeps runs apart."""


def newest_sources(results: Sequence[Result], last: Mapping[str, LastCommand] | None = None) -> Newest:
    """The newest sources of each workload: of its newest result, or of a later command that kept all its results.
    Results that do not know theirs count for nothing.

    Args:
        last: the last command of each run, by the run's name.
    """
    made = [(result.started_at, _workload(result), result.sources) for result in results if result.sources is not None]
    made += [
        (command.at, (command.workload, command.script, run), command.sources)
        for name, command in (last or {}).items()
        for run in ("", name)
    ]
    return {workload: sources for _, workload, sources in sorted(made, key=lambda one: one[0])}


def stale_files(result: Result, newest: Newest) -> tuple[str, ...]:
    """The source files in which ``result`` differs from the newest; none where its sources are not known."""
    return differing(result.sources, newest.get(_workload(result), {})) if result.sources is not None else ()


def _workload(result: Result) -> Made:
    """The name of a script is that of its file: two folders may have one train.py each."""
    cell = result.attempt.cell
    return cell.workload, cell.script.command if cell.script else (), str(result.axes.get(RUN, ""))
