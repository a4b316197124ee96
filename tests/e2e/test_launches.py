"""Repeated launches on real ranks: interleaved on running servers, killed, resumed, and continued with --until."""

import json
from collections import Counter

from harness import Bench, wait_for

from bench.records.cell import Attempt
from bench.records.outcome import Ok
from bench.store.run_folder import Store

BACKENDS = ["ddp", "fsdp"]


def launches(bench: Bench) -> list[tuple[str, int]]:
    """Backend and number of each stored launch, in the order in which they were measured."""
    found = list((bench.folder / "run").glob("attempts/*/b2*/result.json"))
    attempts = [
        json.loads(file.read_text())["attempt"] for file in sorted(found, key=lambda file: file.stat().st_mtime)
    ]
    return [(attempt["cell"]["backend"], attempt["launch"]) for attempt in attempts]


def test_a_killed_run_of_two_launches_goes_on_where_it_was(bench: Bench) -> None:
    matrix = bench.matrix(matrix={"backend": BACKENDS, "batch": 2}, measure={"steps": 3, "launches": 2})
    command = ["run", matrix, "--out", str(bench.folder / "run")]
    killed = bench.start(*command)
    wait_for(lambda: len(launches(bench)) >= 2)
    killed.kill()
    killed.wait()
    bench.assert_gone()
    before = {file: file.read_bytes() for file in (bench.folder / "run").glob("attempts/*/b2*/result.json")}
    assert 2 <= len(before) < 4
    output = bench(*command)
    assert f"2 cells, 4 attempts, {len(before)} of them finished before" in output
    assert {file: file.read_bytes() for file in before} == before
    made = launches(bench)
    assert [number for _, number in made] == [1, 1, 2, 2]
    assert {backend for backend, number in made if number == 2} == set(BACKENDS)
    results = bench.results()
    assert all(isinstance(result.outcome, Ok) for result in results)
    assert len({result.attempt.cell.id for result in results}) == 2
    # Both commands started accelerate once, for all launches of both backends.
    assert len(list((bench.folder / "run" / "servers").iterdir())) == 2


def test_launches_of_two_backends_take_turns_until_they_are_narrow(bench: Bench) -> None:
    matrix = bench.matrix(
        workload={"name": "toy:Toy", "sleep_s": 0.02},
        matrix={"backend": BACKENDS, "batch": 2},
        measure={"warmup_steps": 1, "steps": 5, "phase_steps": 0},
    )
    run = bench.folder / "run"
    output = bench("run", matrix, "--out", str(run), "--until", "90%", "--budget", "5m")
    until = Store(run).until()
    assert until is not None
    assert (until.ended, until.wide, until.half_width, until.budget_s) == ("narrow", 0, 0.9, 300.0)
    counts = Counter(backend for backend, _ in launches(bench))
    assert until.launches == sum(counts.values()) - 2 >= 4
    assert min(counts.values()) >= 3
    made = launches(bench)
    rounds = [made[start : start + 2] for start in range(0, len(made), 2)]
    assert all({backend for backend, _ in pair} == set(BACKENDS) for pair in rounds)
    assert len(list((run / "servers").iterdir())) == 1
    ended = "--until 90.0 % asks for 95 % intervals of at most 90.0 % to each side: every comparison reached it"
    assert ended in output
    assert ended in (run / "report.md").read_text()
    again = Attempt(cell=Store(run).results()[0].attempt.cell, batch_per_rank=2, launch=3)
    assert "spec.json" in {file.name for file in Store(run).folder(again).iterdir()}
