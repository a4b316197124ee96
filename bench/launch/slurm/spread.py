"""One `accelerate launch` on each node of this job: one task of srun per node."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.launch.attempt_files import srun
from bench.launch.environment import launch_environment
from bench.launch.supervised import END_TIMEOUT_S, Supervised
from bench.launch.watch import POLL_S
from bench.store import spool
from bench.store.spool import NodeBeat

QUIET_S = 10.0
"""A node that has not beaten for so long is gone: it beats every second."""


class SpreadLaunch(Supervised):
    """The launches of all nodes, and all processes below them.

    Args:
        nodes: how many of the job's nodes.
        config_file: for `accelerate launch`. Its folder, shared by all nodes, is where the launches meet.
        log: receives the output of all launches.
        arguments: of `bench.runner`; or of a script, see bench/launch/slurm/node.py.
        added: variables that bench adds to the environment.
    """

    def __init__(
        self, nodes: int, config_file: Path, log: Path, arguments: Sequence[str], added: Mapping[str, str]
    ) -> None:
        self._nodes, self._spool = nodes, config_file.parent
        node = [sys.executable, "-P", "-m", "bench.launch.slurm.node", str(config_file), *arguments]
        super().__init__([*srun(nodes), *node], log, launch_environment(os.environ, added))

    def silent(self) -> list[str]:
        """The nodes that are gone, whether Slurm has noticed or not. Nothing can be said after the launches' end."""
        first, until_s = self._beats(), time.monotonic() + QUIET_S
        while still := [node for node, beat in enumerate(self._beats()) if beat == first[node]]:
            if self.process.poll() is not None:
                return []
            if time.monotonic() > until_s:
                return [beat.name if (beat := first[node]) else f"number {node + 1}" for node in still]
            time.sleep(POLL_S)
        return []

    def _beats(self) -> list[NodeBeat | None]:
        return [spool.read(spool.node_file(self._spool, node), NodeBeat) for node in range(self._nodes)]

    def kill(self) -> None:
        """End the launches. Killing srun would leave them alive: each node ends its own, and srun then ends."""
        spool.close(self._spool)
        try:
            self.process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            super().kill()
