"""Opens a sweep: its folder is taken, its executor stands ready, and no process remains when it is left."""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from bench import backends, machine, workload
from bench.launch.local import Executor, Forking, OwnLaunch
from bench.launch.watch import Limits
from bench.machine.conditions import Sampler
from bench.matrix import CellPlan, Matrix
from bench.records.machine import Hardware
from bench.records.outcome import Isolation
from bench.store.run_folder import Store
from bench.sweep.progress import Progress
from bench.sweep.sweep import Rerun, Sweep


@contextmanager
def opened(
    matrix: Matrix,
    plans: Sequence[CellPlan],
    hardware: Hardware,
    folder: Path,
    progress: Progress,
    *,
    rerun: Rerun | None = None,
    isolation: Isolation = "fork",
    limits: Limits | None = None,
    keep_matrix: bool = False,
) -> Iterator[Sweep]:
    """The sweep of ``plans`` in ``folder``.

    Args:
        limits: how long attempts may take; by default those of the matrix.
        keep_matrix: leave the folder's own `matrix.yaml` as it is.

    Raises:
        InputError: another run holds the folder, or what it holds comes from an unlike machine.
    """
    store = Store(folder)
    record = machine.record(hardware, os.environ, backends.environment(1, hardware, os.environ))
    modules = [workload.module_of(matrix.workload.name)]
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
            signal.signal(number, lambda number, _: sys.exit(128 + number))  # so that the clean-up below runs
    with store.open(record, [plan.cell for plan in plans], None if keep_matrix else matrix.text()):
        executor: Executor = (
            OwnLaunch(hardware)
            if isolation == "launch"
            else Forking(store.servers, hardware, modules, progress.waiting, progress.note)
        )
        with closing(executor):
            yield Sweep(
                plans=plans,
                goal=matrix.probe,
                units=workload.load(matrix.workload.name).units,
                machine=record,
                limits=limits or Limits(matrix.launch.attempt_timeout_s, matrix.launch.hang_after_s),
                rerun=rerun,
                store=store,
                executor=executor,
                progress=progress,
                beside=Sampler(store.root),
            )
