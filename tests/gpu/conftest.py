"""Collects what each check found, for the report that `make gpu` leaves, which has each line at once."""

import os
import subprocess
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from checks import (
    AVAILABLE,
    HARDWARE,
    PARTS,
    POLICY,
    REHEARSED,
    Line,
    figures,
    lines_of,
    merged,
    page,
    run,
    stem,
    without_paths,
)
from harness import ROOT, Bench, bench
from nvml import sampled

from bench import machine
from bench.records.machine import Machine
from bench.store import spool

__all__ = ["bench"]

HERE = Path(__file__).parent
SETUP_S: dict[str, float] = {}
FEW = {"warmup_steps": 2, "steps": 5, "phase_steps": 3, "launches": 1}


def part_of(item: pytest.Item) -> str | None:
    """The part that a check belongs to; None for other tests."""
    return item.path.stem.removeprefix("test_") if HERE in item.path.parents else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if part_of(item) is None:
            continue
        item.add_marker(pytest.mark.gpu)
        needed = next((mark.args[0] for mark in item.iter_markers("gpus")), 1)
        if HARDWARE.devices < needed and not REHEARSED:
            which = "a CUDA device" if needed == 1 else f"{needed} CUDA devices"
            item.add_marker(
                pytest.mark.skip(reason=f"needs {which} and the driver; this machine has {HARDWARE.devices}")
            )
    items.sort(key=lambda item: PARTS.index(part) if (part := part_of(item)) else -1)


def pytest_collection_finish(session: pytest.Session) -> None:
    chosen = {part_of(item) for item in session.items}
    if _reports() and chosen >= set(PARTS) and not session.config.option.collectonly:
        _report().unlink(missing_ok=True)  # with the lines of checks that are no more


@pytest.fixture
def found(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Receives the figures of a check, by name."""

    def note(**found: object) -> None:
        request.node.user_properties += [(name.replace("_", " "), str(value)) for name, value in found.items()]

    return note


@pytest.fixture(scope="session")
def kept() -> Path:
    """The folder beside the report, for small files that tests on other machines can read."""
    folder = _report().with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def ended(folder: Path) -> Iterator[Bench]:
    """A bench for several checks."""
    bench = Bench(folder)
    yield bench
    bench.assert_gone()


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory, kept: Path) -> Iterator[Bench]:
    """A run of all backends, each in a world of one. Their ranks leave files in the folders of their names."""
    with ended(tmp_path_factory.mktemp("alone")) as bench, sampled(kept / "nvml.jsonl"):
        cells = [{"backend": name, "keep": str(bench.folder / name)} for name in AVAILABLE]
        run(bench, cells, workload={**POLICY, "name": "recorded:Recorded"}, measure=FEW)
        yield bench


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    part = part_of(item)
    if report.when == "setup":
        SETUP_S[item.nodeid] = call.duration
    if part and _reports() and (report.when == "call" or not report.passed):
        says = item.function.__doc__.strip().partition("\n")[0]  # type: ignore[attr-defined]
        chosen = getattr(item, "callspec", None)
        why = report.longrepr[2] if report.skipped else str(call.excinfo.value) if call.excinfo else ""  # type: ignore[index]
        outcome = report.outcome if report.when == "call" or report.skipped else "error"
        found = {name: str(value) for name, value in report.user_properties}
        found |= {"why": why.partition("\n")[0].removeprefix("Skipped: ")} if why else {}
        took_s = call.duration + (SETUP_S.get(item.nodeid, 0.0) if report.when == "call" else 0.0)
        check = says + (f" ({chosen.id})" if chosen else "")
        _write(Line(part, check, outcome, without_paths(figures(found)), took_s, _commit()))
    return report


def _reports() -> bool:
    return REHEARSED or HARDWARE.device == "cuda"


def _report() -> Path:
    return Path(os.environ.get("BENCH_GPU_REPORTS", ROOT / "reports")) / f"{stem(_machine())}.md"


def _write(line: Line) -> None:
    """Add a line to the report, which is never half written."""
    report = _report()
    earlier = lines_of(report.read_text()) if report.exists() else []
    spool.write_text(report, page(_machine(), merged(earlier, line)))


@cache
def _machine() -> Machine:
    return machine.record(HARDWARE)


@cache
def _commit() -> str:
    """The commit, and whether anything but reports has changed since."""

    def git(*arguments: str) -> str:
        done: Any = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        return str(done.stdout).strip() if done.returncode == 0 else ""

    short = git("rev-parse", "--short=8", "HEAD") or os.environ.get("BENCH_COMMIT", "unknown")
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!reports")
    return short + " with changes" * bool(changed)
