"""Runs of the command line on a test cluster."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

from cluster import Cluster
from harness import HERE, Bench, wait_for

from bench.records.outcome import Result
from bench.store.beats import read_beat
from bench.store.run_folder import Store
from bench.store.spool import Spec, read

SLOW_S = 0.2
"""Sleep in each step of the attempt that faults strike."""


class SlurmBench(Bench):
    """Runs the command line with the commands of a cluster."""

    def __init__(self, folder: Path, slurm: Cluster) -> None:
        super().__init__(folder)
        self.slurm, self.out = slurm, folder / "run"

    def start(
        self, *arguments: str, cwd: Path = HERE, stdin: int | None = None, **environment: str
    ) -> "subprocess.Popen[str]":
        return super().start(*arguments, cwd=cwd, stdin=stdin, **{**self.slurm.environment, **environment})

    def run(self, matrix: str, *options: str, expect: int = 0) -> str:
        """`bench run` on the cluster, to its end."""
        return self("run", matrix, "--launcher", "slurm", "--out", str(self.out), *options, expect=expect)

    def store(self) -> Store:
        return Store(self.out)

    def job_ids(self) -> list[str]:
        """All jobs of the run, the oldest first."""
        return sorted((file.name for file in (self.out / "slurm").glob("[0-9]*/")), key=int)

    def end_of_job(self, number: str) -> dict[str, object]:
        found: dict[str, object] = json.loads((self.out / "slurm" / number / "job_end.json").read_text())
        return found

    def three_turns(self, **measure: int) -> str:
        """A matrix of three cells, the second of which is slow."""
        return self.matrix(
            matrix={"backend": "ddp", "sleep_s": [0.0, SLOW_S, 0.001], "batch": 2},
            measure={"warmup_steps": 2, "steps": 30, "phase_steps": 3, **measure},
        )

    def slow_attempt(self, before: Mapping[Path, int] | None = None) -> Path:
        """Wait until the slow attempt measures; returns its folder.

        Args:
            before: spec files of earlier tries and when they were written.
        """

        def found() -> Path | None:
            for file in self.out.glob("attempts/*/b*/spec.json"):
                spec, beat = read(file, Spec), read_beat(file.parent, 0)
                slow = spec is not None and spec.attempt.cell.options["sleep_s"] == SLOW_S
                new = before is None or before.get(file) != file.stat().st_mtime_ns
                if slow and new and beat is not None and beat.phase == "measure":
                    return file.parent
            return None

        folder = wait_for(found, 120)
        assert isinstance(folder, Path)
        return folder

    def finished(self) -> dict[Path, bytes]:
        """The results so far."""
        return {file: file.read_bytes() for file in self.out.glob("attempts/*/b*/result.json")}

    def by_sleep(self) -> dict[object, Result]:
        return {result.attempt.cell.options["sleep_s"]: result for result in self.store().results()}

    def tried_again(self) -> list[str]:
        """The attempts with more than one try, once for each earlier one."""
        return [str(file.relative_to(self.out)) for file in self.out.glob("superseded/*/b*")]

    def left(self) -> list[list[str]]:
        """Command lines of all processes that jobs, or this bench, have left."""
        return [process.cmdline() for process in (*self.slurm.processes(), *self.processes()) if process.is_running()]


def losses(store: Store) -> dict[str, list[float]]:
    """The loss of every step of rank 0, by backend."""
    found = {}
    for result in store.results():
        assert result.outcome.kind == "ok", result.outcome
        first = result.outcome.ranks[0]
        found[result.attempt.cell.backend] = [*first.warmup_losses, *first.losses]
    return found
