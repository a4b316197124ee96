"""Collects what each check found, for the report that `make gpu` leaves."""

import os
import re
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from checks import ANYWHERE, HARDWARE, Line, page
from harness import ROOT, bench

from bench import machine

__all__ = ["bench"]

LINES: list[Line] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent not in item.path.parents:
            continue
        item.add_marker(pytest.mark.gpu)
        needed = next((mark.args[0] for mark in item.iter_markers("gpus")), 1)
        if HARDWARE.devices < needed and ANYWHERE not in os.environ:
            which = "a CUDA device" if needed == 1 else f"{needed} CUDA devices"
            item.add_marker(
                pytest.mark.skip(reason=f"needs {which} and the driver; this machine has {HARDWARE.devices}")
            )


@pytest.fixture
def found(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Receives the figures of a check, by name."""

    def note(**figures: object) -> None:
        request.node.user_properties += [(name.replace("_", " "), str(value)) for name, value in figures.items()]

    return note


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if Path(__file__).parent in item.path.parents and (report.when == "call" or not report.passed):
        says = item.function.__doc__.strip().partition("\n")[0]  # type: ignore[attr-defined]
        chosen = getattr(item, "callspec", None)
        why = report.longrepr[2] if report.skipped else str(call.excinfo.value) if call.excinfo else ""  # type: ignore[index]
        outcome = report.outcome if report.when == "call" or report.skipped else "error"
        figures = {name: str(value) for name, value in report.user_properties} | (
            {"why": re.sub(r"/\S+/", "…/", why.partition("\n")[0])} if why else {}
        )
        LINES.append(Line(says + (f" ({chosen.id})" if chosen else ""), outcome, figures, call.duration))
    return report


def pytest_sessionfinish() -> None:
    if LINES and HARDWARE.device == "cuda":
        record = machine.record(HARDWARE)
        name = "-".join([str(HARDWARE.devices), *record.accelerators[0].lower().split()])
        file = ROOT / f"reports/gpu-{name}.md"
        file.write_text(page(record, LINES))
        print(f"\nwritten: {file.relative_to(ROOT)}")
