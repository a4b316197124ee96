"""The section of searches over batch: what each one found."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from bench.records.verdict import Answer, Goal, Probe, Verdict
from bench.report.naming import caption, search_end, setting, settings_name, short_reason
from bench.report.rows import Summary
from bench.report.tables.table import Column, Number, Table, table_of
from bench.units import UNKNOWN, in_table, percent, rate

GOALS: dict[str, Callable[[Goal], str]] = {
    "headroom": lambda goal: percent(goal.headroom),
    "granularity": lambda goal: str(goal.granularity),
    "tolerance": lambda goal: percent(goal.tolerance),
    "max_batch": lambda goal: str(goal.max_batch),
}
"""The options of a search. Searches with different options have different answers."""


class _Search(NamedTuple):
    probe: Probe
    settings: dict[str, str]
    """In words."""

    @property
    def verdict(self) -> Verdict | None:
        return self.probe.found if isinstance(self.probe.found, Verdict) else None


def _setting(name: str, search: _Search) -> str:
    return search.settings[name]


def _goal(name: str, search: _Search) -> str:
    return GOALS[name](search.probe.goal)


def _of_verdict(header: str, words: Callable[[Verdict], str]) -> Column[_Search]:
    return Number(header, lambda search: words(search.verdict) if search.verdict else UNKNOWN)


def _of_answer(
    header: str, answer: Callable[[Verdict], Answer | None], words: Callable[[Answer], str]
) -> Column[_Search]:
    return _of_verdict(header, lambda verdict: words(found) if (found := answer(verdict)) else UNKNOWN)


def _reason(search: _Search) -> str:
    """Whole where it is bench's own sentence, whose end may say what to do; shortened where it is an error's."""
    said = search_end(search.probe.found, search.probe.needs_bytes)
    return said if search.verdict else short_reason(said)


COLUMNS: tuple[Column[_Search], ...] = (
    _of_verdict("max", lambda verdict: in_table(verdict.max_batch_per_rank, "count")),
    _of_verdict("does not fit", lambda verdict: in_table(verdict.fails, "count")),
    _of_answer("best", lambda verdict: verdict.best, lambda answer: str(answer.batch)),
    _of_answer("best samples/s", lambda verdict: verdict.best, lambda answer: rate(answer.samples_per_s)),
    _of_answer("safe", lambda verdict: verdict.safe, lambda answer: str(answer.batch)),
    _of_answer("safe samples/s", lambda verdict: verdict.safe, lambda answer: rate(answer.samples_per_s)),
    _of_answer("safe holds", lambda verdict: verdict.safe, lambda answer: percent(answer.held)),
    _of_verdict("points", lambda verdict: str(verdict.points)),
    Column("reason", _reason, prose=True),
)


def searches(probes: Sequence[Probe], summary: Summary | None = None) -> Table:
    """One row a search.

    Args:
        summary: of the results of these searches: settings other than the axes that differ between their cells.
    """
    # A search's file does not say which machine it ran on.
    columns = [name for name in summary.columns if name != "machine"] if summary else []
    settings = {cell.cell.id: cell.rows[0].settings for cell in summary.cells} if summary else {}
    of_probe = [{**settings.get(probe.cell.id, {}), **probe.axes} for probe in probes]
    names = list(dict.fromkeys([*(name for probe in probes for name in probe.axes), *columns]))
    lines = [
        _Search(probe, {name: setting(name, values[name]) if name in values else UNKNOWN for name in names})
        for probe, values in zip(probes, of_probe, strict=True)
    ]
    varying = [name for name in names if name == "backend" or len({line.settings[name] for line in lines}) > 1]
    unlike = [name for name, words in GOALS.items() if len({words(probe.goal) for probe in probes}) > 1]
    alike = [f"{name} {words(probes[0].goal)}" for name, words in GOALS.items() if probes and name not in unlike]
    return table_of(
        "Batch per rank",
        lines,
        [
            *(Column[_Search](caption(name), partial(_setting, name)) for name in varying),
            *(Column[_Search](name, partial(_goal, name)) for name in unlike),
            *COLUMNS,
        ],
        name=lambda line: settings_name(line.settings, [name for name in line.settings if name in varying]),
        notes=(
            "max: the largest batch that fits into a fresh process, tested with a few steps unless it is best or safe,"
            " too. best: highest throughput. safe: highest throughput within the headroom. Both are measured in fresh"
            " processes, in full. points: number of fresh batches behind best and safe. safe holds: share of capacity."
            + (f" Requested: {', '.join(alike)}." if alike else ""),
        ),
    )
