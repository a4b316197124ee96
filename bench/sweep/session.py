"""Opens a sweep: locks its folder, makes its executor, and ends every process when the sweep is left."""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from importlib.machinery import PathFinder
from pathlib import Path

import bench
from bench import backends, machine, workloads
from bench.errors import InputError
from bench.launch.accelerate_launch import OwnLaunch
from bench.launch.environment import added_environment, recorded_environment
from bench.launch.executor import Context, Executor
from bench.launch.launchers import LAUNCHERS
from bench.launch.watch import Limits
from bench.machine import freed
from bench.machine.conditions import Sampler
from bench.matrix import Matrix, run_plan
from bench.matrix.script import check_program, workload_of
from bench.matrix.yaml_file import place_of
from bench.records.base import Device
from bench.records.cell import Cell
from bench.records.machine import Hardware, Machine
from bench.records.outcome import Isolation
from bench.records.plan import CellPlan
from bench.records.sources import LastCommand, Sources
from bench.records.verdict import Goal
from bench.store import calibrations
from bench.store.run_folder import Store
from bench.sweep import sources
from bench.sweep.priors import Priors
from bench.sweep.probe import search_cell
from bench.sweep.progress import Progress
from bench.sweep.reuse import Rerun
from bench.sweep.share import Share
from bench.sweep.sweep import Sweep
from bench.units import memory_size


@contextmanager
def opened(
    matrix: Matrix,
    plans: Sequence[CellPlan],
    hardware: Hardware,
    folder: Path,
    progress: Progress,
    *,
    rerun: Rerun | None = None,
    keep_stale: bool = False,
    isolation: Isolation = "fork",
    limits: Limits | None = None,
    keep_matrix: bool = False,
    share: Share | None = None,
    every: Sequence[CellPlan] | None = None,
) -> Iterator[Sweep]:
    """The sweep of ``plans`` in ``folder``.

    Args:
        keep_stale: keep stored results that other sources made.
        limits: how long attempts may take; by default the limits of the matrix.
        keep_matrix: do not write the folder's `matrix.yaml`.
        share: what this process measures, where others measure in the same folder; None: it is alone.
        every: all cells of the matrix, where ``plans`` are not all.

    Raises:
        InputError: another run uses the folder, its results come from a different machine, or ranks would not find
            bench.
    """
    scripted = matrix.command is not None
    if scripted:
        check_program(matrix, os.environ.get("PATH", ""))
    else:
        _check_not_hidden(Path.cwd())
    store = Store(folder)
    added, recorded = added_environment(1, hardware, os.environ), recorded_environment(os.environ)
    record = machine.record(hardware, os.environ, added, recorded)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores it
            signal.signal(number, lambda number, _: sys.exit(128 + number))  # the clean-up below runs
    text, of_ranks = None if keep_matrix else matrix.text(folder), _sources(matrix)
    planned = None if keep_matrix else run_plan(matrix, every or plans)
    cells, batches = [plan.cell for plan in plans], {plan.cell.slug: plan.batch_axis for plan in plans}
    with store.open(record, cells, text, plan=planned, batches=batches, shared=share is not None):
        if not keep_matrix:
            store.keep_command(_command(plans[0].cell, of_ranks))
        if learnt := calibrations.newest(record, calibrations.folder()):
            store.keep_calibration(learnt)
        memory = freed.Memory(os.environ)

        def note_held(held_bytes: int) -> None:
            progress.note(
                f"{freed.AT_MOST_S:g} s after an attempt had ended, {memory_size(held_bytes)} of GPU memory were still"
                " in use: attempts have less from now on"
            )

        def await_memory() -> None:
            if held_bytes := memory.wait():
                note_held(held_bytes)

        context = Context(
            hardware=hardware,
            new_folder=store.servers,
            preloads={} if scripted else _preloads(plans, hardware.device),
            modules=[] if scripted else workloads.modules_of(matrix.workload.name),
            workload_folder=matrix.workload_folder,
            folder=matrix.folder,
            waiting=progress.waiting,
            note=progress.note,
            await_memory=await_memory,
            note_held=note_held,
        )
        with closing(LAUNCHERS["script" if scripted else isolation](context)) as executor:
            priors = Priors(
                plans, hardware, matrix.workload_folder, progress.waiting, next(iter(record.accelerators), None)
            )
            sweep = _sweep(
                matrix, plans, of_ranks, record, store, executor, progress, rerun, keep_stale, limits, share, priors
            )
            if any(sweep.reuse.is_stale(result) for plan in plans for result in store.of_cell(plan.cell)):
                store.forget_forecasts()
            yield sweep


def hardware_of(folder: Path) -> Hardware | None:
    """Of the machine on which ``folder`` was measured; None if it holds no run."""
    run = Store(folder).plan() if folder.is_dir() else None
    return run.machine.hardware if run is not None and isinstance(run.machine.hardware, Hardware) else None


def stored(
    matrix: Matrix, plans: Sequence[CellPlan], folder: Path, progress: Progress, *, keep_stale: bool = True
) -> Sweep:
    """A sweep to read what a run holds of ``plans``, on whichever machine it was measured. It measures nothing."""
    store = Store(folder)
    run = store.plan()
    assert run is not None
    hardware = run.machine.hardware
    assert isinstance(hardware, Hardware)
    executor = OwnLaunch(hardware)  # starts nothing by itself
    return _sweep(matrix, plans, _sources(matrix), run.machine, store, executor, progress, None, keep_stale)


def is_finished(sweep: Sweep) -> bool:
    """Whether the run holds all results of the sweep, and its verdicts answer the questions of its searches."""
    return not _has_other_goals(sweep.store, sweep.plans, sweep.goal) and sweep.first_to_measure() is None


def _has_other_goals(store: Store, plans: Sequence[CellPlan], goal: Goal) -> bool:
    """Whether a stored verdict answers another question than this search asks."""
    found = (store.probe(plan.cell) for plan in plans if plan.search)
    return any(probe.goal != goal.of(probe.cell) for probe in found if probe is not None)


def _sweep(
    matrix: Matrix,
    plans: Sequence[CellPlan],
    of_ranks: Sources,
    record: Machine,
    store: Store,
    executor: Executor,
    progress: Progress,
    rerun: Rerun | None,
    keep_stale: bool,
    limits: Limits | None = None,
    share: Share | None = None,
    priors: Priors | None = None,
) -> Sweep:
    return Sweep(
        plans=plans,
        goal=matrix.probe,
        search=search_cell,
        units=workload_of(matrix).units,
        workload_folder=matrix.workload_folder,
        workload_place=place_of(matrix.places, ("workload", "name")),
        sources=of_ranks,
        machine=record,
        limits=limits or Limits(matrix.launch.attempt_timeout_s, matrix.launch.hang_after_s),
        rerun=rerun,
        keep_stale=keep_stale,
        share=share or Share(),
        priors=priors,
        store=store,
        executor=executor,
        progress=progress,
        beside=Sampler(store.root),
    )


def _command(cell: Cell, of_ranks: Sources) -> LastCommand:
    """This command. All its cells have the workload of ``cell``."""
    return LastCommand(
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        workload=cell.workload,
        script=cell.script.command if cell.script else (),
        sources=of_ranks,
    )


def _sources(matrix: Matrix) -> Sources:
    script = matrix.command
    return sources.of(matrix.workload.name) if script is None else sources.of_script(Path(matrix.folder), script)


def _check_not_hidden(folder: Path) -> None:
    """Raises InputError if ranks that start in ``folder`` would import a file of the user's as bench."""
    found = PathFinder.find_spec("bench", [str(folder)])
    if found is not None and found.origin and not Path(found.origin).samefile(bench.__file__):
        raise InputError(
            "hides the bench package: processes started in this folder would import this file instead",
            where=found.origin,
            fix="rename it, or run bench from another folder",
        )


def _preloads(plans: Sequence[CellPlan], device: Device) -> dict[int, set[str]]:
    """What rank servers import for these cells, by number of ranks. Cells that are skipped need nothing."""
    preloads: dict[int, set[str]] = {}
    for plan in plans:
        if backends.forbids(plan.cell, device) is None:
            preloads.setdefault(plan.cell.num_processes, set()).update(backends.preloads(plan.cell))
    return preloads
