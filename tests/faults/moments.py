"""Runs of three cells; a fault strikes while the second cell is in a given phase."""

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
from harness import server_states, wait_for
from table import FaultBench, Phase
from turns import SLOW

from bench.records.outcome import Result
from bench.store.beats import read_beat
from bench.store.spool import Spec, rank_file, read, read_ranks

BEATS = {"set-up": "setup", "warm-up": "warmup", "measuring": "measure", "teardown": "phases"}


class Struck:
    """A run under way.

    Args:
        bench: whose folder `run` it has.
        matrix: fields of the matrix file that are not as `turns` has them.
        start: how bench is started the first time, when not as usual.
    """

    def __init__(
        self,
        bench: FaultBench,
        *options: str,
        matrix: dict[str, object] | None = None,
        start: "Callable[..., subprocess.Popen[str]] | None" = None,
    ) -> None:
        self.bench, self.folder = bench, bench.folder / "run"
        content: dict[str, object] = {
            "workload": {"name": "turns:Turns"},
            "matrix": {"backend": "ddp", "turn": [1, SLOW, 3], "batch": 2},
            "measure": {"warmup_steps": 10, "steps": 10, "phase_steps": 10},
        }
        self.command = ("run", bench.matrix(**(content | (matrix or {}))), "--out", str(self.folder), *options)
        self._before = self._attempts()
        self.process = (start or bench.start)(*self.command)

    def again(self, *options: str) -> None:
        """Run the same command again."""
        self._before = self._attempts()
        self.process = self.bench.start(*self.command, *options)

    def come_to(self, phase: Phase) -> Path:
        """Wait until the second cell is in ``phase``; returns its attempt's folder.

        In the teardown its ranks have spoken and bench, stopped, has not yet heard them.
        """
        if phase == "start":
            wait_for(lambda: len(self.bench.processes()) >= 5)  # bench, the supervisor, the launcher and two ranks
            return self.folder
        folder = wait_for(self._slow_attempt)
        assert isinstance(folder, Path)
        wait_for(lambda: (beat := read_beat(folder, 0)) is not None and beat.phase == BEATS[phase])
        if phase == "teardown":
            self.process.send_signal(signal.SIGSTOP)
            wait_for(lambda: all(rank_file(folder, rank).exists() for rank in range(2)))
            wait_for(lambda: all(state["child"] is None for state in self.servers()))
            assert [rank.kind for rank in read_ranks(folder, 2)] == ["ok", "ok"]
        return folder

    def _attempts(self) -> dict[Path, int]:
        """The attempt folders, and what distinguishes a second try from the first."""
        found = {}
        for file in self.folder.glob("attempts/*/*/spec.json"):
            try:
                found[file.parent] = file.stat().st_mtime_ns
            except FileNotFoundError:  # being set aside
                continue
        return found

    def _slow_attempt(self) -> Path | None:
        for folder, began in self._attempts().items():
            spec = read(folder / "spec.json", Spec)
            if spec and spec.attempt.cell.options["turn"] == SLOW and self._before.get(folder) != began:
                return folder
        return None

    def servers(self) -> list[dict[str, int]]:
        return server_states(self.folder)

    def launcher(self) -> psutil.Process:
        """The latest `accelerate launch`."""
        [launcher] = self.supervisor().children()
        return launcher

    def supervisor(self) -> psutil.Process:
        """Its parent: see bench/launch/supervisor.py."""
        return max(psutil.Process(self.process.pid).children(), key=lambda child: child.create_time())

    def end(self) -> tuple[int, str]:
        """Wait for the end; exit code and output."""
        output, _ = self.process.communicate(timeout=120)
        return self.process.returncode, output

    def wake(self) -> None:
        self.process.send_signal(signal.SIGCONT)  # nothing where it has been killed and reaped

    def result(self, turn: int) -> Result | None:
        """The stored result of a cell."""
        found = [r for r in self.bench.results() if r.attempt.cell.options["turn"] == turn]
        return found[0] if found else None
