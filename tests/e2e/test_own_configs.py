"""Each config of own_configs.py runs as in a plain accelerate loop under the same file, or is refused with a reason."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import HERE, ROOT
from own_configs import CONFIGS, Own

from bench import backends
from bench.errors import InputError
from bench.launch import attempt_files
from bench.matrix import expand, load
from bench.records.cell import Attempt, Cell
from bench.records.machine import Hardware

CPU = Hardware(device="cpu", devices=0, cores=2, memory_bytes=2**34)
Ask = Callable[[dict[str, Any]], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    """What each rank of a job found: see effective.py. One process serves all jobs."""
    program = [sys.executable, str(HERE / "effective.py")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        stdin, stdout = process.stdin, process.stdout

        def ask(job: dict[str, Any]) -> list[dict[str, Any]]:
            stdin.write(json.dumps(job) + "\n")
            stdin.flush()
            found: list[dict[str, Any]] = json.loads(next(line for line in stdout if line.startswith('[{"')))
            return found

        yield ask
        stdin.close()


def cell_of(own: Own, folder: Path) -> Cell:
    for name, text in own.files().items():
        (folder / name).write_text(text)
    content = {
        "workload": {"name": f"{HERE}/blocks.py:{own.factory}"},
        "matrix": {"backend": [{"name": "mine", "config_file": "own.yaml"}], "batch": 2},
        "launch": {"num_processes": own.ranks, **({"mixed_precision": own.precision} if own.precision else {})},
    }
    (folder / "matrix.yaml").write_text(json.dumps(content))
    (plan,) = expand(load(folder / "matrix.yaml", hardware=CPU), CPU)
    return plan.cell


def jobs(own: Own, cell: Cell, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The loop under the user's file, and bench under the files that it writes."""
    both = {"kind": own.distributed_type, "ranks": own.ranks, "log": str(folder / "log")}
    attempt = folder / "attempt"
    attempt.mkdir()
    written = attempt_files.files(Attempt(cell=cell, batch_per_rank=2), None, "cpu", {}, str(attempt))
    for name, text in written.items():
        (attempt / name).write_text(text)
    loop = {"side": "loop", "file": str(folder / "own.yaml"), "precision": own.precision, "factory": own.factory}
    mine = {"side": "bench", "file": str(attempt / "accelerate.yaml"), "spec": str(attempt / "spec.json")}
    return both | loop, both | mine


@pytest.mark.parametrize(
    "own",
    [pytest.param(own, id=own.kind, marks=[] if own.in_test else pytest.mark.long) for own in CONFIGS if not own.says],
)
def test_it_runs_as_in_a_plain_loop(own: Own, ask: Ask, tmp_path: Path) -> None:
    cell = cell_of(own, tmp_path)
    assert backends.forbids(cell, "cpu") is None
    mine, loop = map(ask, reversed(jobs(own, cell, tmp_path)))  # bench builds what both need
    assert len(loop) == len(mine) == own.ranks
    for plain, observed in zip(loop, mine, strict=True):
        assert "error" not in plain, plain
        assert "error" not in observed, observed
        del observed["regime"]
        assert observed.pop("losses") == pytest.approx(plain.pop("losses"), rel=1e-5)
        assert observed == plain


@pytest.mark.parametrize("own", [pytest.param(own, id=own.kind) for own in CONFIGS if own.says and not own.late])
def test_it_is_refused_before_launch_with_the_reason(own: Own, tmp_path: Path) -> None:
    try:
        reason = backends.forbids(cell_of(own, tmp_path), "cpu") or ""
    except InputError as error:
        reason = str(error)
        assert re.search(rf"{tmp_path}/\w+\.\w+:\d+: ", reason) or "requires this field" in reason
    assert own.says in reason


@pytest.mark.long
@pytest.mark.parametrize("own", [pytest.param(own, id=own.kind) for own in CONFIGS if own.late])
def test_what_only_the_model_shows_fails_at_set_up_as_in_a_plain_loop(own: Own, ask: Ask, tmp_path: Path) -> None:
    loop, mine = map(ask, jobs(own, cell_of(own, tmp_path), tmp_path))
    assert own.says in mine[0]["error"]
    assert loop == mine
