"""Repeated launches on real ranks: interleaved on running servers, killed, resumed, and continued with --until."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from harness import Bench, wait_for
from kept import KeptBench

from bench.records.cell import Attempt
from bench.records.outcome import Ok
from bench.store.run_folder import Store

BACKENDS = ["ddp", "fsdp"]


@dataclass(frozen=True)
class Resumed:
    """A run of two launches a cell, and more until they are narrow: killed early; the same command then went on."""

    folder: Path
    before: dict[Path, bytes]
    """The results that the kill had left."""
    output: str

    def launches(self) -> list[tuple[str, int]]:
        """Backend and number of each stored launch, in the order in which they were measured."""
        files = sorted(stored(self.folder), key=lambda file: file.stat().st_mtime)
        attempts = [json.loads(file.read_text())["attempt"] for file in files]
        return [(attempt["cell"]["backend"], attempt["launch"]) for attempt in attempts]


def stored(folder: Path) -> list[Path]:
    return list(folder.glob("attempts/*/b2*/result.json"))


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Resumed:
    bench = Bench(tmp_path_factory.mktemp("launches"))
    folder = bench.folder / "run"
    matrix = bench.matrix(
        workload={"name": "toy:Toy", "sleep_s": 0.02},
        matrix={"backend": BACKENDS, "batch": 2},
        measure={"warmup_steps": 1, "steps": 5, "phase_steps": 0, "launches": 2},
    )
    command = ["run", matrix, "--out", str(folder), "--until", "90%", "--budget", "5m"]
    killed = bench.start(*command)
    wait_for(lambda: len(stored(folder)) >= 2)
    killed.kill()
    killed.wait()
    bench.assert_gone()
    before = {file: file.read_bytes() for file in stored(folder)}
    output = bench(*command)
    bench.assert_gone()
    return Resumed(folder, before, output)


def test_a_killed_run_of_two_launches_goes_on_where_it_was(resumed: Resumed) -> None:
    assert 2 <= len(resumed.before) < 4
    assert f"2 cells, 4 attempts, {len(resumed.before)} of them finished before" in resumed.output
    assert {file: file.read_bytes() for file in resumed.before} == resumed.before
    listed = resumed.launches()[:4]
    assert [number for _, number in listed] == [1, 1, 2, 2]
    results = Store(resumed.folder).results()
    assert all(isinstance(result.outcome, Ok) for result in results)
    assert len({result.attempt.cell.id for result in results}) == 2
    # Both commands started accelerate once, for all launches of both backends.
    assert len(list((resumed.folder / "servers").iterdir())) == 2


def test_launches_of_two_backends_take_turns_until_they_are_narrow(resumed: Resumed) -> None:
    made, store = resumed.launches(), Store(resumed.folder)
    until = store.until()
    assert (until.ended, until.wide, until.half_width, until.budget_s) == ("narrow", 0, 0.9, 300.0)
    counts = Counter(backend for backend, _ in made)
    assert until.launches == sum(counts.values()) - 4 >= 2
    assert min(counts.values()) >= 3
    rounds = [made[start : start + 2] for start in range(0, len(made), 2)]
    assert all({backend for backend, _ in pair} == set(BACKENDS) for pair in rounds)
    ended = "for 95 % intervals of ±90.0 %: every comparison is that narrow"
    assert ended in resumed.output
    assert ended in (resumed.folder / "report-full.md").read_text()
    again = Attempt(cell=store.results()[0].attempt.cell, batch_per_rank=2, launch=3)
    assert "spec.json" in {file.name for file in store.folder(again).iterdir()}


def test_what_leads_is_launched_again_until_the_budget_is_spent(tmp_path: Path) -> None:
    bench = KeptBench(tmp_path)
    matrix = bench.matrix(
        workload={"name": "toy:Toy", "sleep_s": 0.02},
        matrix={"backend": [*BACKENDS, "zero2"], "batch": 2},
        measure={"warmup_steps": 1, "steps": 5, "phase_steps": 0, "launches": "auto"},
    )
    command = ["run", matrix, "--out", str(tmp_path / "run"), "--budget", "10s"]
    output = bench(*command)
    until, results = Store(tmp_path / "run").until(), Store(tmp_path / "run").results()
    assert (until.auto, until.half_width, until.launches) == (True, 0.02, len(results) - 3)
    assert until.budget_s == 10
    again = Counter(result.attempt.cell.backend for result in results if result.attempt.launch > 1)
    assert 2 <= len(again) <= 3
    assert "measure.launches: auto added " in output
    if until.ended == "budget":
        assert until.took_s >= until.budget_s
        bench(*command)
        assert len(Store(tmp_path / "run").results()) == len(results)
