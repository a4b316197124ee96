"""Real runs of the command line, each in its own folder, and a way to find every process that a run left behind."""

import contextlib
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import yaml
from typer.testing import CliRunner

from bench.cli.app import app
from bench.records.account import Account
from bench.records.outcome import Ok, Result
from bench.store.run_folder import Store

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
MARK = "BENCH_TEST_RUN"
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""As bench gives each of two ranks on two cores. The two of a single rank would spin on cores that other tests use."""

FEW_STEPS = {"warmup_steps": 1, "steps": 3, "phase_steps": 1}


class Bench:
    """Runs the command line. All its descendants have a mark in their environment."""

    module = "bench.cli"

    def __init__(self, folder: Path) -> None:
        self.folder, self.mark = folder, uuid.uuid4().hex

    def start(
        self, *arguments: str, cwd: Path = HERE, stdin: int | None = None, **environment: str
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", self.module, *arguments],
            cwd=cwd,
            stdin=stdin,
            env={**os.environ, MARK: self.mark, "PYTHONPATH": str(ROOT), **ONE_THREAD, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def __call__(self, *arguments: str, cwd: Path = HERE, expect: int = 0, **environment: str) -> str:
        process = self.start(*arguments, cwd=cwd, stdin=None, **environment)
        output, _ = process.communicate(timeout=1800)
        assert process.returncode == expect, output
        return output

    def matrix(self, name: str = "toy", **content: object) -> str:
        """A matrix file over the toy workload, in bf16 also on a CPU without instructions for it; returns its path."""
        file = self.folder / f"{name}.yaml"
        content = {"workload": {"name": "toy:Toy"}, "measure": FEW_STEPS, **content}
        if "mixed_precision" not in content.get("matrix", {}):  # type: ignore[operator]
            content["launch"] = {"mixed_precision": "bf16", **content.get("launch", {})}  # type: ignore[dict-item]
        content["measure"] = {"launches": 1, **content["measure"]}  # type: ignore[dict-item]
        file.write_text(yaml.safe_dump(content))
        return str(file)

    def results(self, name: str = "run") -> list[Result]:
        return Store(self.folder / name).results()

    def processes(self) -> list[psutil.Process]:
        """Every live process that this bench or one of its descendants has started."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def names(self) -> set[str]:
        """The names of those processes; some may end meanwhile."""
        names = set()
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                names.add(process.name())
        return names

    def assert_gone(self, within_s: float = 5) -> None:
        deadline = time.monotonic() + within_s
        while left := self.processes():
            assert time.monotonic() < deadline, [process.cmdline() for process in left]
            time.sleep(0.1)


@pytest.fixture
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    """Of the class that the module names `BENCH`."""
    runner: Bench = getattr(request.module, "BENCH", Bench)(tmp_path)
    yield runner
    left = runner.processes()
    for process in left:
        process.kill()
    assert not left


def reading(*arguments: str) -> str:
    """The output of a command that reads a run, made in this process: another one takes longest to import."""
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    return done.output


def ok(result: Result) -> Ok:
    """The outcome of a result that was measured."""
    assert isinstance(result.outcome, Ok), result.outcome
    return result.outcome


def account_of(result: Result) -> Account:
    """The result's account, which sums to its wall time."""
    assert result.account is not None
    assert result.account.accounted_s == pytest.approx(result.wall_s, rel=0.02)
    return result.account


def wait_for(condition: Callable[[], object], within_s: float = 60) -> object:
    deadline = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)
    return found


def server_states(folder: Path) -> list[dict[str, int]]:
    """The logs of the rank servers of the latest launch, by rank."""
    launches = sorted((folder / "servers").glob("*"), key=lambda launch: int(launch.name))
    return [json.loads(file.read_text()) for file in sorted(launches[-1].glob("server*.json"))] if launches else []
