"""Rank servers, which fork for every attempt, and the executor that starts and replaces them."""

import math
import os
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import yaml

from bench import processes
from bench.launch.accelerate_launch import Launch, OwnLaunch
from bench.launch.environment import added_environment
from bench.launch.executor import Context, LaunchResult
from bench.launch.ports import free_port
from bench.launch.slurm.spread import SpreadLaunch
from bench.launch.supervised import END_TIMEOUT_S
from bench.launch.watch import POLL_S, Limits, OnBeat, Watch
from bench.records.cell import Cell
from bench.records.hang import Stuck
from bench.store import spool
from bench.store.spool import Request, ServerState

START_TIMEOUT_S = 300.0
"""For the imports of all rank servers; a cold file cache can make them slow."""


class World(NamedTuple):
    """The ranks that one set of servers serves."""

    ranks: int
    nodes: int

    @property
    def ranks_per_node(self) -> int:
        return self.ranks // self.nodes


class RankServers:
    """One `accelerate launch` on each node, whose ranks serve many attempts by forking."""

    def __init__(self, folder: Path, world: World, context: Context) -> None:
        self.folder, self.world, self.num_processes = folder, world, world.ranks
        config_file = folder / "accelerate.yaml"
        spool.write_text(config_file, _plain_config(world))
        added = added_environment(world.ranks_per_node, context.hardware, os.environ, nodes=world.nodes)
        preloads = ",".join(sorted(context.preloads.get(world.ranks, ())))
        serve = ["serve", str(folder), preloads, context.workload_folder or "", *context.modules]
        start = Launch if world.nodes == 1 else partial(SpreadLaunch, world.nodes)
        self.launch = start(config_file, folder / "launch.log", serve, added)
        self._note_held = context.note_held
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
        """Of several nodes, the launch ends when any server does; a process of another node cannot be asked."""
        here = self.states()[: self.world.ranks_per_node]
        return self.launch.exit_reason() is None and all(processes.runs(state.pid) for state in here)

    def run(self, folder: Path, limits: Limits, on_beat: OnBeat) -> LaunchResult:
        self._number += 1
        request = Request(number=self._number, folder=str(folder), port=free_port(everywhere=self.world.nodes > 1))
        spool.write(self.folder / "request.json", request)
        watch = Watch(folder, self.num_processes, limits, on_beat)
        cancelled: str | None = None
        stuck: list[Stuck] = []
        silent: list[str] = []
        end_by = math.inf
        exit_reason: str | None = None
        while not self._idle() and (exit_reason := self.launch.exit_reason()) is None:
            reason = watch.pause()
            if reason is not None and cancelled is None:
                cancelled, stuck, silent = reason, watch.diagnose(), self.launch.silent()
                spool.write(self.folder / "request.json", request.model_copy(update={"cancelled": cancelled}))
                end_by = time.monotonic() + END_TIMEOUT_S
            elif time.monotonic() > end_by:
                self.close()  # a server does not react to the cancellation
        if held_bytes := sum(state.held_bytes for state in self.states()):
            self._note_held(held_bytes)
        return LaunchResult(
            ranks=spool.read_ranks(folder, self.num_processes),
            isolation="fork",
            cancelled=cancelled,
            stuck=stuck,
            launcher_error=exit_reason,
            silent=silent,
            ended_s=self._ended_s(),
        )

    def _idle(self) -> bool:
        states = self.states()
        return len(states) == self.num_processes and all(state.finished == self._number for state in states)

    def _ended_s(self) -> float | None:
        """When the last child of the newest request had ended; None if a server ended before it could see that."""
        if not self._idle():
            return None
        here = self.states()[: self.world.ranks_per_node]  # another node has a clock of its own
        return max((state.ended_s for state in here if state.ended_s is not None), default=None)

    def close(self) -> None:
        self.launch.kill()


class Forking:
    """Rank servers for each number of ranks: started on demand, replaced if they die."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._servers: dict[World, RankServers] = {}
        self._own: OwnLaunch | None = None

    def run(self, cell: Cell, folder: Path, limits: Limits, on_beat: OnBeat) -> LaunchResult:
        if self._own is None or cell.num_nodes > 1:
            servers = self._ready(cell)
            if isinstance(servers, LaunchResult):
                return servers
            if reason := next((state.unforkable for state in servers.states() if state.unforkable), None):
                if cell.num_nodes > 1:
                    why = f"a rank server cannot fork, and several nodes need one: {reason}"
                    return LaunchResult(ranks=[], isolation="fork", launcher_error=why)
                self.context.note(
                    f"a rank server cannot fork: {reason}. Every attempt now gets its own accelerate launch"
                )
                self.close()
                self._own = OwnLaunch(self.context.hardware, self.context.await_memory)
        if self._own is not None and cell.num_nodes == 1:
            return self._own.run(cell, folder, limits, on_beat)
        result = self._servers[_world(cell)].run(folder, limits, on_beat)
        if result.launcher_error is not None:
            self._end(_world(cell))
        return result

    def prepare(self, cell: Cell) -> None:
        """Start the rank servers, if they do not run yet."""
        if (world := _world(cell)) not in self._servers and (self._own is None or cell.num_nodes > 1):
            self._servers[world] = RankServers(self.context.new_folder(), world, self.context)

    def _ready(self, cell: Cell) -> RankServers | LaunchResult:
        """The servers, once they can take an attempt; or the result, if they cannot."""
        world = _world(cell)
        servers = self._servers.get(world)
        if servers is not None and servers.ready and not servers.alive():
            self._end(world)  # died between two attempts: not the fault of either
        self.prepare(cell)
        servers = self._servers[world]
        if not servers.ready:
            on = f" on {world.nodes} nodes" if world.nodes > 1 else ""
            self.context.waiting(f"starting rank servers: {world.ranks}{on}")
            if problem := servers.wait_ready():
                silent = servers.launch.silent()
                self._end(world)
                return LaunchResult(ranks=[], isolation="fork", launcher_error=problem, silent=silent)
        return servers

    def _end(self, world: World) -> None:
        """Return once this machine's GPUs have the memory back: new servers read what is in use when they start."""
        self._servers.pop(world).close()
        self.context.await_memory()

    def close(self) -> None:
        for world in list(self._servers):
            self._end(world)
        if self._own is not None:
            self._own.close()


def _world(cell: Cell) -> World:
    return World(cell.num_processes, cell.num_nodes)


def _plain_config(world: World) -> str:
    """The config that starts rank servers, in YAML. It names no backend: every attempt has its own."""
    config = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "MULTI_GPU" if world.ranks > 1 else "NO",
        "machine_rank": 0,
        "mixed_precision": "no",
        "num_machines": world.nodes,
        "num_processes": world.ranks,
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": False,  # it would stay in the environment of every attempt, and DeepSpeed's could not join
    }
    return yaml.safe_dump(config, sort_keys=False)  # as accelerate reads it, so that `no` stays a word
