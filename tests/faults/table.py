"""One row per planted fault, with its expected and its observed outcome; the rows make reports/faults.md."""

import os
import re
import subprocess
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import pytest
from harness import HERE, ROOT, Bench

from bench.records.outcome import Failed, Result
from bench.store.run_folder import Store

Phase = Literal["start", "set-up", "warm-up", "measuring", "teardown"]
FAULTS = Path(__file__).parent
GONE_WITHIN_S = 5.0


class FaultBench(Bench):
    """A bench that can import the workloads of this folder, and remembers every result that it has seen on disk."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._sighted: set[bytes] = set()
        self.python_path = os.pathsep.join(map(str, (ROOT, FAULTS, HERE)))

    def start(self, *arguments: str, cwd: Path = HERE, **environment: str) -> subprocess.Popen[str]:
        process = super().start(*arguments, cwd=cwd, **{"PYTHONPATH": self.python_path, **environment})

        def look() -> None:
            while process.poll() is None:
                self._sighted |= self._on_disk("*/attempts")
                time.sleep(0.2)

        threading.Thread(target=look, daemon=True).start()
        return process

    def lost(self) -> int:
        """Number of complete results that were on disk at some time, and are now neither there nor superseded."""
        return len(self._sighted - self._on_disk("*/attempts") - self._on_disk("*/superseded"))

    def give_up(self, result: Path) -> None:
        """Call before the test itself destroys this file."""
        self._sighted.discard(result.read_bytes())

    def left(self) -> int:
        """Number of processes that still exist five seconds later."""
        try:
            self.assert_gone(GONE_WITHIN_S)
        except AssertionError:
            return len(self.processes())
        return 0

    def went_on(self, name: str) -> bool:
        """Whether every cell of the run has a result, and the last one, without a fault, is measured."""
        store = Store(self.folder / name)
        run, results = store.plan(), store.results()
        done = {result.attempt.cell.slug for result in results}
        return run is not None and done == set(run.cells) and results[-1].outcome.kind == "ok"

    def _on_disk(self, folders: str) -> set[bytes]:
        contents = set()
        for file in self.folder.glob(f"{folders}/*/*/result.json"):
            try:
                contents.add(file.read_bytes())
            except FileNotFoundError:  # being set aside
                continue
        return contents


@dataclass(frozen=True, kw_only=True)
class Row:
    """One planted fault and its outcome."""

    fault: str
    phase: Phase
    expected: str
    seen: str
    lost: int = 0
    left: int = 0
    went_on: bool = True
    skipped: bool = False

    @property
    def wrong(self) -> list[str]:
        """What differs from the expectation, in words."""
        problems = [f"expected {self.expected}"] if self.seen != self.expected and not self.skipped else []
        problems += [f"{self.lost} results lost"] if self.lost else []
        problems += [f"{self.left} processes left"] if self.left else []
        return problems + ([] if self.went_on else ["the sweep did not continue"])


ROWS: list[Row] = []
"""All rows of this test run, in order."""


def judge(
    bench: FaultBench,
    fault: str,
    phase: Phase,
    seen: Result | str | None,
    expected: str,
    *,
    says: str = "",
    rank: int | None = None,
    run: str = "run",
    goes_on: bool = True,
) -> None:
    """Record a row after the run has ended, then check it.

    Args:
        seen: the result of the attempt with the fault, None if there is none; for a fault elsewhere, the observation in
            the words of ``expected``.
        expected: a kind of outcome; for ``failed`` with its fault: ``failed killed``.
        says: a regular expression that must match the reason.
        rank: the rank on which the failure began, which bench must identify.
        run: the run's folder.
        goes_on: whether the run must end with a measured cell; False if nothing can be measured.
    """
    outcome = seen.outcome if isinstance(seen, Result) else None
    words = seen if isinstance(seen, str) else _words(seen)
    row = Row(
        fault=fault,
        phase=phase,
        expected=expected,
        seen=words,
        lost=bench.lost(),
        left=bench.left(),
        went_on=not goes_on or bench.went_on(run),
    )
    ROWS.append(row)
    reason = getattr(outcome, "reason", "")
    assert row.wrong == [], f"{words}: {reason}"
    assert re.search(says, reason), reason
    assert rank is None or getattr(outcome, "rank", None) == rank, outcome


def skip(fault: str, phase: Phase, why: str) -> None:
    """Record that the fault is impossible on this machine, and skip the test."""
    ROWS.append(Row(fault=fault, phase=phase, expected="", seen=f"skipped: {why}", skipped=True))
    pytest.skip(why)


def _words(result: Result | None) -> str:
    match result:
        case None:
            return "no result"
        case Result(outcome=Failed(fault=fault)):
            return f"failed {fault}"
    return result.outcome.kind


def markdown(rows: Iterable[Row]) -> str:
    """The table: one line per fault, one column per phase."""
    rows = list(rows)
    phases = get_args(Phase)
    lines = [
        "# Planted faults",
        "",
        "Every fault is real: a signal, an exhausted allocator, a stopped process, a full disk, on real ranks. A cell",
        "shows the outcome of the attempt or of the run. `make faults` plants all faults; with",
        "`FAULTS_TABLE=reports/faults.md` it also writes this table.",
        "",
        f"Planted faults: {sum(not row.skipped for row in rows)}. Unexpected outcomes: "
        f"{sum(row.seen != row.expected and not row.skipped for row in rows)}. "
        f"Completed results lost: {sum(row.lost for row in rows)}. "
        f"Processes left after {GONE_WITHIN_S:g} s: {sum(row.left for row in rows)}. "
        f"Sweeps that did not continue: {sum(not row.went_on for row in rows)}. "
        f"Skipped: {sum(row.skipped for row in rows)}.",
        "",
        f"| fault | {' | '.join(phases)} |",
        f"| --- |{' --- |' * len(phases)}",
    ]
    for fault in dict.fromkeys(row.fault for row in rows):
        cells = [_cell(row for row in rows if (row.fault, row.phase) == (fault, phase)) for phase in phases]
        lines.append(f"| {fault} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(rows: Iterable[Row]) -> str:
    """One fault in one phase. Equal outcomes of several attempts, such as on several backends, are counted."""
    words = [f"**{row.seen}** ({', '.join(row.wrong)})" if row.wrong else row.seen for row in rows]
    return ", ".join(f"{one} ×{words.count(one)}" if words.count(one) > 1 else one for one in dict.fromkeys(words))
