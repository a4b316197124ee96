"""Which executor takes a cell once rank servers cannot fork; tests/faults has real ones."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from examples import cell

from bench.launch import rank_servers
from bench.launch.executor import LaunchResult
from bench.launch.rank_servers import Forking


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
    context: Any = SimpleNamespace(note=lambda _: None, hardware=None, new_folder=lambda: tmp_path)
    forking, limits, on_beat = Forking(context), Any, Any
    here, there = cell(num_processes=2), cell(num_processes=2, num_nodes=2)
    for _ in range(2):
        assert forking.run(here, tmp_path, limits, on_beat).isolation == "launch"
        assert "several nodes need one" in (forking.run(there, tmp_path, limits, on_beat).launcher_error or "")
