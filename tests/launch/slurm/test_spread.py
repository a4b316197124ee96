"""Which of several nodes are gone while their launches run. Slurm is made up here; tests/slurm has a real one."""

import subprocess
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from bench.launch.slurm import spread
from bench.launch.slurm.spread import SpreadLaunch
from bench.store import spool
from bench.store.spool import NodeBeat


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SpreadLaunch]:
    """Launches on three nodes."""
    monkeypatch.setattr(spread, "srun", lambda _: ["sleep", "600"])
    monkeypatch.setattr(spread, "QUIET_S", 0.2)
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda _, **how: popen(["sleep", "600"], **how))
    one = SpreadLaunch(3, tmp_path / "accelerate.yaml", tmp_path / "launch.log", [], {})
    yield one
    one.process.kill()
    one.process.wait()


def test_a_node_without_a_beat_is_gone(launch: SpreadLaunch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beats, read = count(), spool.read
    spool.write(spool.node_file(tmp_path, 1), NodeBeat(name="n2", number=7))

    def newest(file: Path, kind: type[NodeBeat]) -> NodeBeat | None:
        return NodeBeat(name="n1", number=next(beats)) if file.name == "node0.alive" else read(file, kind)

    monkeypatch.setattr(spool, "read", newest)
    assert launch.silent() == ["n2", "number 3"]
    monkeypatch.setattr(spool, "read", lambda *_: NodeBeat(name="n1", number=next(beats)))
    assert launch.silent() == []


def test_nothing_is_said_of_nodes_whose_launches_have_ended(launch: SpreadLaunch) -> None:
    launch.process.kill()
    launch.process.wait()
    assert launch.silent() == []
