"""Runs attempts on this machine: on rank servers that fork, or each in an `accelerate launch` of its own."""

import math
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import yaml

from bench import processes, secrets
from bench.launch.attempt_files import launch_command
from bench.launch.environment import added_environment, launch_environment
from bench.launch.watch import POLL_S, Limits, OnBeat, Watch, cause_of_death, exit_codes
from bench.records.base import Device
from bench.records.cell import Cell
from bench.records.hang import Stuck
from bench.records.machine import Hardware
from bench.records.outcome import Isolation
from bench.records.phases import Stage
from bench.records.rank_outcome import RankError, RankKilled, RankOutcome
from bench.store import spool
from bench.store.spool import Request, ServerState
from bench.units import counted

START_TIMEOUT_S = 300.0
"""For the imports of all rank servers; a cold file cache can make them slow."""
END_TIMEOUT_S = 10.0


@dataclass(frozen=True, kw_only=True)
class LaunchResult:
    """What the ranks of one attempt left; `diagnosis.classify` derives the outcome from it."""

    ranks: Sequence[RankOutcome]
    """At most one per rank; a rank that left nothing is missing."""
    isolation: Isolation
    cancelled: str | None = None
    """Why bench ended the attempt, if it did: no progress, or the time limit."""
    stuck: Sequence[Stuck] = ()
    """What the ranks were doing then."""
    launcher_error: str | None = None
    """Why the launch ended, if it did so before its ranks left their results."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """What an executor gets from the run."""

    hardware: Hardware
    new_folder: Callable[[], Path]
    """Makes the spool folder of a launch of rank servers."""
    preloads: Mapping[int, Collection[str]]
    """By number of ranks: `bench.backends.preloads` of the cells, which rank servers import before they fork."""
    modules: Sequence[str]
    """Other modules that they import then: the workload's."""
    waiting: Callable[[str], None]
    """Receives what takes time."""
    note: Callable[[str], None]
    """Receives what the user should know."""


class Executor(Protocol):
    """Runs one prepared attempt folder at a time."""

    def prepare(self, num_processes: int) -> None:
        """Start what the next attempt of so many ranks needs, without waiting for it."""
        ...

    def run(self, cell: Cell, folder: Path, limits: Limits, on_beat: OnBeat) -> LaunchResult: ...

    def close(self) -> None:
        """End every process that was started."""
        ...


class Launch:
    """One `accelerate launch` and all processes below it.

    Args:
        log: receives the output of the launcher, and of ranks until they redirect theirs.
        arguments: of `bench.runner`.
        added: variables that bench adds to the environment.
    """

    def __init__(self, config_file: Path, log: Path, arguments: Sequence[str], added: Mapping[str, str]) -> None:
        self.log = log
        self._scratch = log.with_name("torchelastic")  # else torch leaves a folder in /tmp for each launch
        leash = [sys.executable, "-m", "bench.launch.leash", str(os.getpid())]
        command = launch_command(arguments, python=sys.executable, config_file=config_file, log_dir=self._scratch)
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [*leash, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=launch_environment(os.environ, added, Path(sys.executable).parent),
                start_new_session=True,
            )

    def exit_reason(self) -> str | None:
        """Why the launch has ended; None while it runs."""
        code = self.process.poll()
        return None if code is None else cause_of_death(code, self.output())

    def output(self) -> str:
        """The launcher's output so far, without the user's secrets."""
        return secrets.mask(self.log.read_text(errors="replace"))

    def kill(self) -> None:
        """End the launcher and every process below it, in any state. The leash does this when it is terminated."""
        self.process.terminate()
        try:
            self.process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            processes.kill(processes.tree(self.process.pid))
            self.process.wait()
        shutil.rmtree(self._scratch, ignore_errors=True)


class OwnLaunch:
    """Each attempt in its own `accelerate launch`."""

    def __init__(self, hardware: Hardware) -> None:
        self.hardware = hardware
        self._launch: Launch | None = None

    def prepare(self, num_processes: int) -> None:
        """Nothing: every attempt starts its own processes."""

    def run(self, cell: Cell, folder: Path, limits: Limits, on_beat: OnBeat) -> LaunchResult:
        world_size = cell.num_processes
        added = added_environment(world_size, self.hardware, os.environ)
        self._launch = Launch(folder / "accelerate.yaml", folder / "launch.log", ["attempt", str(folder)], added)
        watch = Watch(folder, world_size, limits, on_beat)
        try:
            while (exit_reason := self._launch.exit_reason()) is None:
                if reason := watch.pause():
                    stuck = watch.diagnose()
                    ranks = spool.read_ranks(folder, world_size)
                    return LaunchResult(ranks=ranks, isolation="launch", cancelled=reason, stuck=stuck)
            ranks = spool.read_ranks(folder, world_size)
            reported = {rank.rank for rank in ranks}
            codes = exit_codes(self._launch.output())
            ranks += [_from_exit_code(folder, rank, code) for rank, code in codes.items() if rank not in reported]
            # A rank's own report says more than the launcher's summary of that rank.
            explained = len(ranks) == world_size or any(rank in reported for rank in codes)
            return LaunchResult(ranks=ranks, isolation="launch", launcher_error=None if explained else exit_reason)
        finally:
            self.close()

    def close(self) -> None:
        if self._launch is not None:
            self._launch.kill()
            self._launch = None


def _from_exit_code(folder: Path, rank: int, code: int) -> RankKilled | RankError:
    """The report that a rank server would have written for this rank."""
    beat = spool.read_beat(folder, rank)
    phase, place = beat.phase if beat else Stage.START, spool.last_place(folder, rank)
    if code >= 0:
        error = f"the process ended by itself with exit code {code} and left no result"
        return RankError(rank=rank, phase=phase, error=error, traceback="", at=time.time(), place=place)
    return RankKilled(
        rank=rank,
        phase=phase,
        signal=processes.signal_name(-code),
        at=time.time(),
        place=place,
        last_words=spool.last_words(folder, rank) or None,
    )


class RankServers:
    """One `accelerate launch` whose ranks serve many attempts by forking."""

    def __init__(self, folder: Path, num_processes: int, context: Context) -> None:
        self.folder, self.num_processes, hardware = folder, num_processes, context.hardware
        config_file = folder / "accelerate.yaml"
        write_yaml(config_file, _plain_config(num_processes, hardware.device))
        added = added_environment(num_processes, hardware, os.environ)
        preloads = ",".join(sorted(context.preloads.get(num_processes, ())))
        serve = ["serve", str(folder), preloads, *context.modules]
        self.launch = Launch(config_file, folder / "launch.log", serve, added)
        self._number = 0
        self._started_s = time.monotonic()
        self.ready = False
        """Whether all servers have finished their imports."""

    def wait_ready(self) -> str | None:
        """Wait until all servers have finished their imports. Returns an error if they did not."""
        deadline = self._started_s + START_TIMEOUT_S
        while len(self.states()) < self.num_processes:
            if exit_reason := self.launch.exit_reason():
                return f"the rank servers did not start: {exit_reason}"
            if time.monotonic() > deadline:
                return f"the rank servers did not start within {START_TIMEOUT_S:g} s"
            time.sleep(POLL_S)
        self.ready = True
        return None

    def states(self) -> list[ServerState]:
        files = (self.folder / f"server{rank}.json" for rank in range(self.num_processes))
        return [state for file in files if (state := spool.read(file, ServerState)) is not None]

    def alive(self) -> bool:
        return self.launch.exit_reason() is None and all(processes.runs(state.pid) for state in self.states())

    def run(self, folder: Path, limits: Limits, on_beat: OnBeat) -> LaunchResult:
        self._number += 1
        request = Request(number=self._number, folder=str(folder), port=_free_port())
        spool.write(self.folder / "request.json", request)
        watch = Watch(folder, self.num_processes, limits, on_beat)
        cancelled: str | None = None
        stuck: list[Stuck] = []
        end_by = math.inf
        exit_reason: str | None = None
        while not self._idle() and (exit_reason := self.launch.exit_reason()) is None:
            reason = watch.pause()
            if reason is not None and cancelled is None:
                cancelled, stuck = reason, watch.diagnose()
                spool.write(self.folder / "request.json", request.model_copy(update={"cancelled": cancelled}))
                end_by = time.monotonic() + END_TIMEOUT_S
            elif time.monotonic() > end_by:
                self.close()  # a server does not react to the cancellation
        ranks = spool.read_ranks(folder, self.num_processes)
        return LaunchResult(ranks=ranks, isolation="fork", cancelled=cancelled, stuck=stuck, launcher_error=exit_reason)

    def _idle(self) -> bool:
        states = self.states()
        return len(states) == self.num_processes and all(state.finished == self._number for state in states)

    def close(self) -> None:
        self.launch.kill()


class Forking:
    """One launch of rank servers for each number of ranks: started on demand, replaced if they die."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._servers: dict[int, RankServers] = {}
        self._own: OwnLaunch | None = None

    def run(self, cell: Cell, folder: Path, limits: Limits, on_beat: OnBeat) -> LaunchResult:
        if self._own is None:
            servers = self._ready(cell.num_processes)
            if isinstance(servers, str):
                return LaunchResult(ranks=[], isolation="fork", launcher_error=servers)
            if reason := next((state.unforkable for state in servers.states() if state.unforkable), None):
                self.context.note(
                    f"a rank server cannot fork: {reason}. Every attempt now gets its own accelerate launch"
                )
                self.close()
                self._own = OwnLaunch(self.context.hardware)
        if self._own is not None:
            return self._own.run(cell, folder, limits, on_beat)
        result = self._servers[cell.num_processes].run(folder, limits, on_beat)
        if result.launcher_error is not None:
            self._servers.pop(cell.num_processes).close()
        return result

    def prepare(self, num_processes: int) -> None:
        """Start the rank servers, if they do not run yet."""
        if num_processes not in self._servers and self._own is None:
            self._servers[num_processes] = RankServers(self.context.new_folder(), num_processes, self.context)

    def _ready(self, num_processes: int) -> RankServers | str:
        """The servers, once they can take an attempt; or why they cannot."""
        servers = self._servers.get(num_processes)
        if servers is not None and servers.ready and not servers.alive():
            self._servers.pop(num_processes).close()  # died between two attempts: not the fault of either
        self.prepare(num_processes)
        servers = self._servers[num_processes]
        if not servers.ready:
            self.context.waiting(f"starting {counted(num_processes, 'rank server')}")
            if problem := servers.wait_ready():
                self._servers.pop(num_processes).close()
                return problem
        return servers

    def close(self) -> None:
        for servers in self._servers.values():
            servers.close()
        self._servers.clear()
        if self._own is not None:
            self._own.close()


LAUNCHERS: Mapping[Isolation, Callable[[Context], Executor]] = {
    "fork": Forking,
    "launch": lambda context: OwnLaunch(context.hardware),
}
"""How `--isolation` runs attempts."""


def _plain_config(num_processes: int, device: Device) -> dict[str, Any]:
    """The config that starts rank servers. It names no backend: every attempt has its own."""
    return {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "MULTI_GPU" if num_processes > 1 else "NO",
        "machine_rank": 0,
        "mixed_precision": "no",
        "num_machines": 1,
        "num_processes": num_processes,
        "use_cpu": device == "cpu" and num_processes == 1,
    }


def write_yaml(path: Path, content: Mapping[str, Any]) -> None:
    """Write YAML with the library that accelerate reads it with, so that `no` stays a word."""
    spool.write_text(path, yaml.safe_dump(dict(content), sort_keys=False))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
