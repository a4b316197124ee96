"""Runs attempts on this machine: on rank servers that fork, or each in an `accelerate launch` of its own."""

import math
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import yaml

from bench import backends, processes, secrets
from bench.launch.attempt_files import launch_command
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
class Ended:
    """What an attempt left behind; `outcome.classify` judges it."""

    ranks: Sequence[RankOutcome]
    isolation: Isolation
    gave_up: str | None = None
    stuck: Sequence[Stuck] = ()
    launcher: str | None = None


class Executor(Protocol):
    """Runs one prepared attempt folder at a time."""

    def run(self, cell: Cell, folder: Path, limits: Limits, on_beat: OnBeat) -> Ended: ...

    def close(self) -> None:
        """End every process that was started."""
        ...


class Launch:
    """One `accelerate launch` and all processes below it."""

    def __init__(self, config_file: Path, log: Path, arguments: Sequence[str], added: Mapping[str, str]) -> None:
        self.log = log
        leash = [sys.executable, "-m", "bench.launch.leash", str(os.getpid())]
        command = launch_command(arguments, python=sys.executable, config_file=config_file)
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [*leash, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=backends.launch_environment(os.environ, added, Path(sys.executable).parent),
                start_new_session=True,
            )

    def ended(self) -> str | None:
        """Why the launch has ended, or None while it runs."""
        code = self.process.poll()
        return None if code is None else cause_of_death(code, self.words())

    def words(self) -> str:
        """What the launcher has said."""
        return secrets.mask(self.log.read_text(errors="replace"))

    def kill(self) -> None:
        """End the launcher and every process below it, whatever their state: the leash does."""
        self.process.terminate()
        try:
            self.process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            processes.kill(processes.tree(self.process.pid))
            self.process.wait()


class OwnLaunch:
    """Each attempt in its own `accelerate launch`."""

    def __init__(self, hardware: Hardware) -> None:
        self.hardware = hardware
        self._launch: Launch | None = None

    def run(self, cell: Cell, folder: Path, limits: Limits, on_beat: OnBeat) -> Ended:
        world_size = cell.num_processes
        added = backends.environment(world_size, self.hardware, os.environ)
        self._launch = Launch(folder / "accelerate.yaml", folder / "launch.log", ["attempt", str(folder)], added)
        watch = Watch(folder, world_size, limits, on_beat)
        try:
            while (ended := self._launch.ended()) is None:
                if gave_up := watch.pause():
                    stuck = watch.diagnose()
                    ranks = spool.read_ranks(folder, world_size)
                    return Ended(ranks=ranks, isolation="launch", gave_up=gave_up, stuck=stuck)
            ranks = spool.read_ranks(folder, world_size)
            spoken = {rank.rank for rank in ranks}
            codes = exit_codes(self._launch.words())
            ranks += [_ended(folder, rank, code) for rank, code in codes.items() if rank not in spoken]
            # A rank that has said itself why it failed says more than the launcher does of it.
            said = len(ranks) == world_size or any(rank in spoken for rank in codes)
            return Ended(ranks=ranks, isolation="launch", launcher=None if said else ended)
        finally:
            self.close()

    def close(self) -> None:
        if self._launch is not None:
            self._launch.kill()
            self._launch = None


def _ended(folder: Path, rank: int, code: int) -> RankKilled | RankError:
    """What a rank server would have said, where there is none."""
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

    def __init__(self, folder: Path, num_processes: int, hardware: Hardware, modules: Sequence[str]) -> None:
        self.folder, self.num_processes = folder, num_processes
        config_file = folder / "accelerate.yaml"
        write_yaml(config_file, _plain_config(num_processes, hardware.device))
        added = backends.environment(num_processes, hardware, os.environ)
        self.launch = Launch(config_file, folder / "launch.log", ["serve", str(folder), *modules], added)
        self._number = 0

    def wait_ready(self) -> str | None:
        """Wait until all servers have imported everything; the reason when they did not."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while len(self.states()) < self.num_processes:
            if ended := self.launch.ended():
                return f"the rank servers did not start: {ended}"
            if time.monotonic() > deadline:
                return f"the rank servers did not start within {START_TIMEOUT_S:g} s"
            time.sleep(POLL_S)
        return None

    def states(self) -> list[ServerState]:
        files = (self.folder / f"server{rank}.json" for rank in range(self.num_processes))
        return [state for file in files if (state := spool.read(file, ServerState)) is not None]

    def alive(self) -> bool:
        return self.launch.ended() is None and all(processes.runs(state.pid) for state in self.states())

    def run(self, folder: Path, limits: Limits, on_beat: OnBeat) -> Ended:
        self._number += 1
        request = Request(number=self._number, folder=str(folder), port=_free_port())
        spool.write(self.folder / "request.json", request)
        watch = Watch(folder, self.num_processes, limits, on_beat)
        gave_up: str | None = None
        stuck: list[Stuck] = []
        end_by = math.inf
        ended: str | None = None
        while not self._idle() and (ended := self.launch.ended()) is None:
            reason = watch.pause()
            if reason is not None and gave_up is None:
                gave_up, stuck = reason, watch.diagnose()
                spool.write(self.folder / "request.json", request.model_copy(update={"cancelled": gave_up}))
                end_by = time.monotonic() + END_TIMEOUT_S
            elif time.monotonic() > end_by:
                self.close()  # a server that does not answer
        ranks = spool.read_ranks(folder, self.num_processes)
        return Ended(ranks=ranks, isolation="fork", gave_up=gave_up, stuck=stuck, launcher=ended)

    def _idle(self) -> bool:
        states = self.states()
        return len(states) == self.num_processes and all(state.finished == self._number for state in states)

    def close(self) -> None:
        # Children of a server lead process groups of their own; the tree finds them all the same.
        self.launch.kill()


class Forking:
    """Rank servers for every process count that the cells need, started when first needed, replaced when they die.

    Args:
        spool: makes a new folder for a launch of servers.
        modules: imported by the servers beforehand.
        waiting: told what takes its time.
        note: told what the user should know.
    """

    def __init__(
        self,
        spool: Callable[[], Path],
        hardware: Hardware,
        modules: Sequence[str],
        waiting: Callable[[str], None],
        note: Callable[[str], None],
    ) -> None:
        self.spool, self.hardware, self.modules = spool, hardware, modules
        self.waiting, self.note = waiting, note
        self._servers: dict[int, RankServers] = {}
        self._own: OwnLaunch | None = None

    def run(self, cell: Cell, folder: Path, limits: Limits, on_beat: OnBeat) -> Ended:
        if self._own is None:
            servers = self._ready(cell.num_processes)
            if isinstance(servers, str):
                return Ended(ranks=[], isolation="fork", launcher=servers)
            if reason := next((state.unforkable for state in servers.states() if state.unforkable), None):
                self.note(f"a rank server cannot fork: {reason}. Every attempt now gets its own accelerate launch")
                self.close()
                self._own = OwnLaunch(self.hardware)
        if self._own is not None:
            return self._own.run(cell, folder, limits, on_beat)
        ended = self._servers[cell.num_processes].run(folder, limits, on_beat)
        if ended.launcher is not None:
            self._servers.pop(cell.num_processes).close()
        return ended

    def _ready(self, num_processes: int) -> RankServers | str:
        servers = self._servers.get(num_processes)
        if servers is not None and not servers.alive():
            self._servers.pop(num_processes).close()  # died between two attempts, which is neither's fault
        if num_processes not in self._servers:
            self.waiting(f"starting {counted(num_processes, 'rank server')}")
            servers = RankServers(self.spool(), num_processes, self.hardware, self.modules)
            self._servers[num_processes] = servers
            if problem := servers.wait_ready():
                self._servers.pop(num_processes).close()
                return problem
        return self._servers[num_processes]

    def close(self) -> None:
        for servers in self._servers.values():
            servers.close()
        self._servers.clear()
        if self._own is not None:
            self._own.close()


def _plain_config(num_processes: int, device: Device) -> dict[str, Any]:
    """What starts the servers: no backend yet, that is each attempt's own."""
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
    """With the library that accelerate reads it with, so that `no` stays a word."""
    spool.write_text(path, yaml.safe_dump(dict(content), sort_keys=False))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
