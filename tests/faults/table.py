"""One row a fault: where it was planted, what it should come to and what it came to. They make reports/faults.md."""

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
    """A bench under which workloads of this folder are found, and which remembers every result that was once there."""

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
        """How many results were whole on disk at some moment, and are neither there nor set aside now."""
        return len(self._sighted - self._on_disk("*/attempts") - self._on_disk("*/superseded"))

    def give_up(self, result: Path) -> None:
        """The test itself is about to destroy this file."""
        self._sighted.discard(result.read_bytes())

    def left(self) -> int:
        """How many processes are there five seconds later."""
        try:
            self.assert_gone(GONE_WITHIN_S)
        except AssertionError:
            return len(self.processes())
        return 0

    def went_on(self, name: str) -> bool:
        """Every cell of the run has a result, and the last one, in which nothing is planted, is measured."""
        store = Store(self.folder / name)
        run, results = store._run(), store.results()
        done = {result.attempt.cell.slug for result in results}
        return run is not None and done == set(run.cells) and results[-1].outcome.kind == "ok"

    def _on_disk(self, folders: str) -> set[bytes]:
        found = set()
        for file in self.folder.glob(f"{folders}/*/*/result.json"):
            try:
                found.add(file.read_bytes())
            except FileNotFoundError:  # being set aside
                continue
        return found


@dataclass(frozen=True, kw_only=True)
class Row:
    """What became of one planted fault."""

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
        """What is not as it should be, in words."""
        found = [f"expected {self.expected}"] if self.seen != self.expected and not self.skipped else []
        found += [f"{self.lost} results lost"] if self.lost else []
        found += [f"{self.left} processes left"] if self.left else []
        return found + ([] if self.went_on else ["the sweep did not go on"])


ROWS: list[Row] = []
"""Of this test run, in its order."""


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
        seen: the result of the attempt that the fault was planted in, None where there is none; or what was seen of a
            fault that struck elsewhere, in the words of ``expected``.
        expected: a kind of outcome; behind ``failed`` its fault: ``failed killed``.
        says: a regular expression that the reason must hold.
        rank: on which the failure must be found to have begun.
        run: the run's folder.
        goes_on: the run must have ended with a measured cell; not so where nothing could be measured at all.
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
    """Record that this machine cannot have the fault, and skip the test."""
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
    """The table: a line a fault, a column a phase."""
    rows = list(rows)
    phases = get_args(Phase)
    lines = [
        "# Planted faults",
        "",
        "Every fault is real: a signal, an exhausted allocator, a stopped process, a full disk, on real ranks. A cell",
        "is what the attempt came to, or what became of the run. `make faults` plants them all; with",
        "`FAULTS_TABLE=reports/faults.md` it writes this table.",
        "",
        f"Planted: {sum(not row.skipped for row in rows)}. Outcomes of another kind than expected: "
        f"{sum(row.seen != row.expected and not row.skipped for row in rows)}. "
        f"Completed results lost: {sum(row.lost for row in rows)}. "
        f"Processes left after {GONE_WITHIN_S:g} s: {sum(row.left for row in rows)}. "
        f"Sweeps that did not go on: {sum(not row.went_on for row in rows)}. "
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
    """Several attempts of one fault in one phase, such as on several backends, say it once when they agree."""
    words = [f"**{row.seen}** ({', '.join(row.wrong)})" if row.wrong else row.seen for row in rows]
    return ", ".join(f"{one} ×{words.count(one)}" if words.count(one) > 1 else one for one in dict.fromkeys(words))
