"""A disk that is full or read-only: one message, exit code 2, no lost results, and the same command resumes."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from moments import Struck
from table import FaultBench, Phase, judge, skip

FULL, READ_ONLY = "No space left on device", "Read-only file system"


def mount(*arguments: object) -> None:
    subprocess.run(["mount", *map(str, arguments)], check=True, capture_output=True)


class Disk:
    """A small real file system at ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._hog = folder, folder / ".hog"
        folder.mkdir()
        mount("-t", "tmpfs", "-o", "size=24m", "tmpfs", folder)

    def fill(self) -> None:
        with self._hog.open("wb", buffering=0) as hog:
            for size in (2**20, 2**12):
                try:
                    while True:
                        hog.write(b"x" * size)
                except OSError:
                    continue

    def free(self) -> None:
        self._hog.unlink()

    def read_only(self) -> None:
        """Applies to every path opened from now on; open files stay open, as when the kernel gives up a disk."""
        # Mounted in one step: a file opened for writing in between would make the kernel say "busy".
        beside = self.folder.with_name(f"{self.folder.name}-read-only")
        beside.mkdir()
        mount("--bind", self.folder, beside)
        mount("-o", "remount,bind,ro", beside)
        mount("--bind", beside, self.folder)
        subprocess.run(["umount", beside], check=True, capture_output=True)
        beside.rmdir()

    def read_and_write(self) -> None:
        subprocess.run(["umount", self.folder], check=True, capture_output=True)


@pytest.fixture
def disk(bench: FaultBench) -> Iterator[Callable[[str], Disk]]:
    """Creates a disk, and removes it with its content."""
    made: list[Path] = []

    def make(fault: str, phase: Phase, name: str = "run") -> Disk:
        try:
            found = Disk(bench.folder / name)
        except (OSError, subprocess.CalledProcessError):
            skip(fault, phase, "mounting is not permitted here")
        made.append(found.folder)
        return found

    yield make
    for folder in made:
        while os.path.ismount(folder):
            subprocess.run(["umount", "--lazy", folder], check=True)


def refused(run: Struck, problem: str) -> str:
    """How the run ended, after a check of its message."""
    code, output = run.end()
    said = [line for line in output.splitlines() if line.startswith("bench: ")]
    assert said == [f"bench: {run.folder}: cannot write there: {problem}"], output
    assert "run the same command to resume" in output
    assert "Traceback" not in output
    assert run.bench.left() == 0
    return f"stops with exit code {code}"


STOPS = "stops with exit code 2"


def test_a_disk_that_becomes_full_stops_the_run_which_goes_on_once_there_is_room(
    bench: FaultBench, disk: Callable[..., Disk]
) -> None:
    full = disk("disk full", "measuring")
    phases: tuple[Phase, ...] = ("set-up", "warm-up", "measuring", "teardown")
    run: Struck | None = None
    seen: dict[Phase, str] = {}
    for phase in phases:
        if run is None:
            run = Struck(bench)
        else:
            run.again("--rerun", "all")
        folder = run.come_to(phase)
        full.fill()
        run.wake()
        seen[phase] = refused(run, FULL)
        # A result measured by then uses the space that the run has reserved.
        assert phase == "set-up" or (folder / "result.json").exists()
        assert {result.outcome.kind for result in bench.results()} == {"ok"}
        assert refused(Struck(bench), FULL) == STOPS  # and launches nothing
        full.free()
    run.again()
    code, output = run.end()
    assert code == 0, output
    assert "2 of them finished before" in output
    for phase, how in seen.items():
        judge(bench, "disk full", phase, how, STOPS)


def test_a_disk_that_is_full_from_the_start(bench: FaultBench, disk: Callable[..., Disk]) -> None:
    full = disk("disk full", "start")
    full.fill()
    run = Struck(bench)
    seen = refused(run, FULL)
    assert {file.name for file in full.folder.iterdir()} <= {".hog", ".lock"}
    full.free()
    run.again()
    assert run.end()[0] == 0
    judge(bench, "disk full", "start", seen, STOPS)


def test_a_full_disk_that_only_a_rank_meets_is_that_attempts_failure(
    bench: FaultBench, disk: Callable[..., Disk]
) -> None:
    full = disk("disk full for one rank only", "measuring", "scratch")
    full.fill()
    run = Struck(bench, matrix={"workload": {"name": "scribbler:Scribbler", "scratch": str(full.folder)}})
    code, output = run.end()
    assert code == 1, output
    judge(bench, "disk full for one rank only", "measuring", run.result(2), "failed disk", says="Errno 28", rank=1)


def test_a_disk_that_becomes_read_only_stops_the_run_which_goes_on_once_it_can_be_written(
    bench: FaultBench, disk: Callable[..., Disk]
) -> None:
    given_up = disk("disk read-only", "measuring")
    phases: tuple[Phase, ...] = ("set-up", "measuring", "teardown")
    run: Struck | None = None
    seen: dict[Phase, str] = {}
    for phase in phases:
        if run is None:
            run = Struck(bench)
        else:
            run.again()
        run.come_to(phase)
        given_up.read_only()
        run.wake()
        seen[phase] = refused(run, READ_ONLY)
        assert [result.outcome.kind for result in bench.results()] == ["ok"]
        given_up.read_and_write()
    run.again()
    code, output = run.end()
    assert code == 0, output
    assert "1 of them finished before" in output
    for phase, how in seen.items():
        judge(bench, "disk read-only", phase, how, STOPS)


def test_a_disk_that_is_read_only_from_the_start(bench: FaultBench, disk: Callable[..., Disk]) -> None:
    given_up = disk("disk read-only", "start")
    given_up.read_only()
    run = Struck(bench)
    seen = refused(run, READ_ONLY)
    given_up.read_and_write()
    run.again()
    assert run.end()[0] == 0
    judge(bench, "disk read-only", "start", seen, STOPS)
