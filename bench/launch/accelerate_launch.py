"""One `accelerate launch` on this machine, and the executor that makes one for each attempt."""

import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench import processes
from bench.launch.attempt_files import launch_command
from bench.launch.environment import added_environment, launch_environment
from bench.launch.executor import LaunchResult
from bench.launch.supervised import Supervised
from bench.launch.watch import Limits, OnBeat, Watch, exit_codes
from bench.records.cell import Cell
from bench.records.machine import Hardware
from bench.records.outcome import Isolation
from bench.store import spool


class Launch(Supervised):
    """One `accelerate launch` and all processes below it.

    Args:
        log: receives the output of the launcher, and of ranks until they redirect theirs.
        arguments: of `bench.runner`.
        added: variables that bench adds to the environment.
    """

    def __init__(self, config_file: Path, log: Path, arguments: Sequence[str], added: Mapping[str, str]) -> None:
        self._scratch = log.with_name("torchelastic")  # else torch leaves a folder in /tmp for each launch
        command = launch_command(arguments, python=sys.executable, config_file=config_file, log_dir=self._scratch)
        super().__init__(command, log, launch_environment(os.environ, added))

    def kill(self) -> None:
        super().kill()
        shutil.rmtree(self._scratch, ignore_errors=True)


class OwnLaunch:
    """Each attempt in its own `accelerate launch`."""

    isolation: Isolation = "launch"
    """What results say of it."""

    def __init__(self, hardware: Hardware, await_memory: Callable[[], None] = lambda: None) -> None:
        self.hardware, self._await_memory = hardware, await_memory
        self._launch: Launch | None = None

    def prepare(self, cell: Cell) -> None:
        """Nothing: every attempt starts its own processes."""

    def run(self, cell: Cell, folder: Path, limits: Limits, on_beat: OnBeat) -> LaunchResult:
        world_size = cell.num_processes
        assert cell.num_nodes == 1
        added = added_environment(world_size, self.hardware, os.environ)
        self._launch = Launch(folder / "accelerate.yaml", folder / "launch.log", ["attempt", str(folder)], added)
        watch = Watch(folder, world_size, limits, on_beat)
        try:
            while (exit_reason := self._launch.exit_reason()) is None:
                if reason := watch.pause():
                    stuck = watch.diagnose()
                    ranks = spool.read_ranks(folder, world_size)
                    self._launch.kill()
                    ended_s = time.monotonic()
                    return LaunchResult(
                        ranks=ranks, isolation=self.isolation, cancelled=reason, stuck=stuck, ended_s=ended_s
                    )
            ended_s = time.monotonic()
            ranks = spool.read_ranks(folder, world_size)
            reported = {rank.rank for rank in ranks}
            codes = exit_codes(self._launch.output())
            ranks += [
                spool.report_of_end(folder, rank, processes.signal_name(-code) if code < 0 else code, time.time())
                for rank, code in codes.items()
                if rank not in reported
            ]
            # A rank's own report says more than the launcher's summary of that rank.
            explained = len(ranks) == world_size or any(rank in reported for rank in codes)
            error = None if explained else exit_reason
            return LaunchResult(ranks=ranks, isolation=self.isolation, launcher_error=error, ended_s=ended_s)
        finally:
            self.close()

    def close(self) -> None:
        if self._launch is not None:
            self._launch.kill()
            self._launch = None
            self._await_memory()
