"""Several runs in one report: told apart by name where two of them hold the same cell. Pure."""

from collections.abc import Container, Mapping, Sequence
from pathlib import Path

from bench.records.outcome import Result
from bench.records.verdict import Probe
from bench.report.contract import RUN, machine_names


def names(folders: Sequence[Path]) -> list[str]:
    """A run's name is its folder's; where two are called the same, the folder as it was given."""
    short = [folder.resolve().name for folder in folders]
    return [name if short.count(name) == 1 else str(folder) for name, folder in zip(short, folders, strict=True)]


def told_apart(
    results: Mapping[str, Sequence[Result]], probes: Mapping[str, Sequence[Probe]]
) -> tuple[list[Result], list[Probe]]:
    """All of them. Where two runs hold the same cell, each is given its run for an axis, and so for a field of its
    contract: else the order of the runs would decide which of two rows an answer rests on. On unlike machines they are
    told apart by these already, but a search does not say on which it ran.

    Args:
        results: those of each run, by its name; as are ``probes``.
    """
    searched = {probe.cell.id for own in probes.values() for probe in own}
    if not _share_a_cell(list(results.values()), searched):
        return [one for found in results.values() for one in found], [one for own in probes.values() for one in own]
    return (
        [
            result.model_copy(update={"axes": {RUN: name, **result.axes}})
            for name, found in results.items()
            for result in found
        ],
        [probe.model_copy(update={"axes": {RUN: name, **probe.axes}}) for name, own in probes.items() for probe in own],
    )


def _share_a_cell(runs: Sequence[Sequence[Result]], searched: Container[str]) -> bool:
    """Whether two runs hold the same cell, on like machines or ``searched``. A workload's own option named run says
    which it is."""
    every = [result for run in runs for result in run]
    if len(runs) < 2 or any(RUN in result.attempt.cell.options for result in every):
        return False
    machines = list({result.machine.model_dump_json(): result.machine for result in every}.values())
    kinds = dict(zip((one.model_dump_json() for one in machines), machine_names(machines), strict=True))
    cells: list[set[tuple[str, str | None]]] = [set() for _ in runs]
    for run, held in zip(runs, cells, strict=True):
        for result in run:
            cell_id = result.attempt.cell.id
            held.add((cell_id, None if cell_id in searched else kinds[result.machine.model_dump_json()]))
    return len(set().union(*cells)) < sum(map(len, cells))
