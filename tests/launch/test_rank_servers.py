"""Which executor takes a cell once rank servers cannot fork; tests/faults has real ones."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from examples import cell
from fake_nvml import Driver

from bench.launch import rank_servers
from bench.launch.executor import LaunchResult
from bench.launch.rank_servers import Forking
from bench.machine import freed


def test_a_cell_on_several_nodes_is_told_why_and_the_others_have_own_launches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Servers:
        ready = True

        def __init__(self, *_: Any) -> None:
            pass

        def alive(self) -> bool:
            return True

        def states(self) -> list[SimpleNamespace]:
            return [SimpleNamespace(unforkable="it has CUDA")]

        def close(self) -> None:
            pass

    class Own(Servers):
        def run(self, *_: Any) -> LaunchResult:
            return LaunchResult(ranks=[], isolation="launch")

    monkeypatch.setattr(rank_servers, "RankServers", Servers)
    monkeypatch.setattr(rank_servers, "OwnLaunch", Own)
    context: Any = SimpleNamespace(
        note=lambda _: None, hardware=None, new_folder=lambda: tmp_path, await_memory=lambda: None
    )
    forking, limits, on_beat = Forking(context), Any, Any
    here, there = cell(num_processes=2), cell(num_processes=2, num_nodes=2)
    for _ in range(2):
        assert forking.run(here, tmp_path, limits, on_beat).isolation == "launch"
        assert "several nodes need one" in (forking.run(there, tmp_path, limits, on_beat).launcher_error or "")


def test_new_servers_start_once_the_memory_of_dead_ones_is_free(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that starts earlier takes what a dying rank still holds for another program's."""
    done: list[str] = []

    class Servers:
        ready = True

        def __init__(self, *_: Any) -> None:
            done.append("start")

        def alive(self) -> bool:
            return done.count("start") > 1

        def states(self) -> list[Any]:
            return []

        def run(self, *_: Any) -> LaunchResult:
            return LaunchResult(ranks=[], isolation="fork")

        def close(self) -> None:
            done.append("end")

    def sleep(_: float) -> None:
        done.append("wait")
        if done.count("wait") % 3 == 0:
            driver.reports("uuid=GPU-a mib=81920 used=0")

    monkeypatch.setattr(rank_servers, "RankServers", Servers)
    monkeypatch.setattr(freed.time, "sleep", sleep)
    driver.reports("uuid=GPU-a mib=81920 used=0")
    memory = freed.Memory({})
    context: Any = SimpleNamespace(
        note=done.append, hardware=None, new_folder=lambda: tmp_path, await_memory=memory.wait
    )
    forking = Forking(context)
    limits, on_beat = Any, Any
    forking.prepare(cell())
    driver.reports("uuid=GPU-a mib=81920 used=70000")
    forking.run(cell(), tmp_path, limits, on_beat)
    assert done == ["start", "end", *["wait"] * 3, "start"]
    driver.reports("uuid=GPU-a mib=81920 used=70000")
    forking.close()
    assert done[6:] == ["end", *["wait"] * 3]
