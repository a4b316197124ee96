"""Rank servers that serve all runs of a pytest process, and the `bench` whose attempts they run.

To import torch and DeepSpeed takes longer than most runs of these tests. `python -m kept` is the command line; only its
rank servers began before it, and outlive it. Who tests how servers start or end, or what they inherit, uses `Bench`.
"""

import atexit
import contextlib
import os
import shutil
import subprocess
import time
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from unittest.mock import patch

from harness import HERE, ONE_THREAD, ROOT, Bench

from bench import machine, processes
from bench.backends import FAMILIES
from bench.launch import launchers
from bench.launch.executor import Context
from bench.launch.rank_servers import Forking, RankServers, World
from bench.records.cell import Cell
from bench.store import spool
from bench.store.spool import Request

FOLDER = "BENCH_TEST_SERVERS"
RANKS = (1, 2)


@cache
def servers() -> Path:
    """The folder of those of this process. They end with it."""
    folder = Path(mkdtemp(prefix="servers-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    preloads = {module for family in FAMILIES.values() for module in family.preloads}
    context = Context(
        hardware=machine.detect(),
        new_folder=folder.mkdir,  # type: ignore[arg-type]  # not called
        preloads=dict.fromkeys(RANKS, preloads),
        modules=(),
        waiting=print,
        note=print,
    )
    with patch.dict(os.environ, {**ONE_THREAD, "PYTHONPATH": str(ROOT)}), contextlib.chdir(HERE):
        for ranks in RANKS:
            (folder / str(ranks)).mkdir()
            RankServers(folder / str(ranks), World(ranks, 1), context)
    return folder


class KeptBench(Bench):
    """Runs the command line on servers that are kept."""

    module = "kept"

    def start(
        self, *arguments: str, cwd: Path = HERE, stdin: int | None = None, **environment: str
    ) -> "subprocess.Popen[str]":
        path = os.pathsep.join(map(str, (ROOT, ROOT / "tests", HERE)))
        more = {"PYTHONPATH": path, FOLDER: str(servers()), **environment}
        return super().start(*arguments, cwd=cwd, stdin=stdin, **more)


class Attached(RankServers):
    """Servers that another process has started."""

    def __init__(self, folder: Path, world: World, context: Context) -> None:
        self.folder, self.world, self.num_processes = folder, world, world.ranks
        self.launch = self  # type: ignore[assignment]
        self._note_held, self._started_s, self._number = context.note_held, time.monotonic(), 0
        self.ready = False

    def wait_ready(self) -> str | None:
        problem = super().wait_ready()
        newest = spool.read(self.folder / "request.json", Request)
        self._number = newest.number if newest else 0
        return problem

    def exit_reason(self) -> str | None:
        gone = [state.rank for state in self.states() if not processes.runs(state.pid)]
        return f"the kept servers of ranks {gone} have ended" if gone else None

    def silent(self) -> list[str]:
        return []

    def kill(self) -> None:
        """They serve the next run."""


class Kept(Forking):
    """Attempts on the servers in the folder of `FOLDER`."""

    def prepare(self, cell: Cell) -> None:
        world = World(cell.num_processes, cell.num_nodes)
        if world not in self._servers:
            folder = Path(os.environ[FOLDER]) / str(world.ranks)
            self._servers[world] = Attached(folder, world, self.context)


if __name__ == "__main__":
    from bench.cli import main

    launchers.LAUNCHERS["fork"] = Kept  # type: ignore[index]
    main()
