"""Merges runs into one report. Where two runs hold the same cell, the run becomes an axis. Pure."""

from collections.abc import Container, Mapping, Sequence
from itertools import chain
from pathlib import Path

from bench.records.outcome import Result
from bench.records.verdict import Probe
from bench.report.controlled import RUN, machine_names


def run_names(folders: Sequence[Path]) -> list[str]:
    """A run has the name of its folder. Where two names are the same, it has the path as the user gave it."""
    short = [folder.resolve().name for folder in folders]
    return [name if short.count(name) == 1 else str(folder) for name, folder in zip(short, folders, strict=True)]


def merge(
    results: Mapping[str, Sequence[Result]], probes: Mapping[str, Sequence[Probe]]
) -> tuple[list[Result], list[Probe]]:
    """All results and searches of the runs, which are by their names.

    Where two runs hold the same cell, the run becomes an axis of every result, and so a variable that it controls.
    Otherwise, the order of the runs would decide which of two rows an answer is based on. Unlike machines already keep
    two rows apart, but a search does not say which machine it ran on.
    """
    searched = {probe.cell.id for of_run in probes.values() for probe in of_run}
    if not _share_a_cell(list(results.values()), searched):
        return list(chain.from_iterable(results.values())), list(chain.from_iterable(probes.values()))
    return (
        [
            result.model_copy(update={"axes": {RUN: name, **result.axes}})
            for name, of_run in results.items()
            for result in of_run
        ],
        [
            probe.model_copy(update={"axes": {RUN: name, **probe.axes}})
            for name, of_run in probes.items()
            for probe in of_run
        ],
    )


def runs_by_time(results: Sequence[Result]) -> list[str]:
    """The runs that `merge` kept apart, the oldest first."""
    began: dict[str, str] = {}
    for result in results:
        if RUN in result.axes and RUN not in result.attempt.cell.options:
            run = str(result.axes[RUN])
            began[run] = min(began.get(run, result.started_at), result.started_at)
    return sorted(began, key=lambda run: began[run])


def _share_a_cell(runs: Sequence[Sequence[Result]], searched: Container[str]) -> bool:
    """Whether two runs hold the same cell, either on machines of the same kind or with a search.

    A workload that has an option named run keeps its runs apart itself.
    """
    every = [result for run in runs for result in run]
    if len(runs) < 2 or any(RUN in result.attempt.cell.options for result in every):
        return False
    machines = list({result.machine.model_dump_json(): result.machine for result in every}.values())
    kinds = dict(zip((one.model_dump_json() for one in machines), machine_names(machines), strict=True))
    cells: list[set[tuple[str, str | None]]] = [set() for _ in runs]
    for run, of_run in zip(runs, cells, strict=True):
        for result in run:
            cell_id = result.attempt.cell.id
            of_run.add((cell_id, None if cell_id in searched else kinds[result.machine.model_dump_json()]))
    return len(set().union(*cells)) < sum(map(len, cells))
