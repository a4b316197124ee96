"""A command and every process below it, which end with it and with bench."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from os import getpid
from pathlib import Path

from bench import processes
from bench.launch.watch import cause_of_death
from bench.store import secrets

END_TIMEOUT_S = 10.0


def supervised(command: Sequence[str], folder: str = ".", limit_bytes: int | None = None) -> list[str]:
    """The command of a process that runs ``command`` and ends with this one: see bench/launch/supervisor.py."""
    supervisor = [sys.executable, "-P", "-m", "bench.launch.supervisor", str(getpid()), folder, str(limit_bytes or 0)]
    return [*supervisor, *command]


class Supervised:
    """A running command.

    Args:
        log: receives its output.
        environment: all of its variables.
        folder: where it runs; by default, where bench runs.
        limit_bytes: what each of its processes may allocate (RLIMIT_DATA); None for no limit.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str],
        folder: str = ".",
        limit_bytes: int | None = None,
    ) -> None:
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                supervised(command, folder, limit_bytes),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    def output(self) -> str:
        """The output so far, without the user's secrets."""
        return secrets.mask(self.log.read_text(errors="replace"))

    def last_line(self) -> str | None:
        """Of the output so far; None without any."""
        return next(reversed(self.output().strip().splitlines()), None)

    def exit_reason(self) -> str | None:
        """Why the launch has ended; None while it runs."""
        code = self.process.poll()
        return None if code is None else cause_of_death(code, self.output())

    def silent(self) -> list[str]:
        """The nodes that are gone: not this one."""
        return []

    def kill(self) -> None:
        """End the command and every process below it, in any state. The supervisor does this when it is terminated."""
        self.process.terminate()
        try:
            self.process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            processes.kill(processes.tree(self.process.pid))
            self.process.wait()
