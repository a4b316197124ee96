"""Whether `bench compare` can be believed on this machine: real runs of a small workload, with a planted sleep or not.

A try is three runs, one after the other: the code as it is, with a sleep of 30 % of the step, and with 10 %. The first
is held against that of the try before (nothing changed), against itself, and against the other two. What is printed are
counts of verdicts over attempts, and in how many tries they were what they must be; the exit code is 1 unless in all.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import yaml

from bench.records.outcome import Result
from bench.report.compare import compare_runs
from bench.statistics.ratio import typical_step
from bench.store.run_folder import Store

ROOT = Path(__file__).parent.parent.parent
WORKLOADS = ROOT / "tests" / "e2e"
MATRIX = {
    "name": "trials",
    # Most of the step waits, as it does for a device; the rest computes and suffers from what else runs here.
    "workload": {"name": "planted:Toy", "sleep_s": 0.04},
    "matrix": {"backend": "ddp", "width": [64, 128, 256], "batch": 16},
    "launch": {"num_processes": 2},
    "measure": {"warmup_steps": 5, "steps": 60, "phase_steps": 0},
}
PLANTED = (0.3, 0.1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=10)
    parser.add_argument("--out", type=Path, help="Keep the runs here.")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        trials = Trials(arguments.out or Path(scratch))
        started = time.monotonic()
        for number in range(arguments.tries + 1):
            trials.one(number)
        print(
            f"{arguments.tries} tries in {time.monotonic() - started:.0f} s; verdicts by attempt, and how many tries:"
        )
        return trials.show()


class Trials:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.matrix = folder / "matrix.yaml"
        self.matrix.write_text(yaml.safe_dump(MATRIX))
        self.before: list[Result] | None = None
        self.verdicts: dict[str, list[list[str]]] = {}
        """By what was compared: of every try, the verdict of each attempt."""

    def one(self, number: int) -> None:
        """One try; the first of all only measures what the next is held against."""
        base = self.run(f"{number}-base", {})
        if self.before is not None:
            self.note("itself", base, base)
            self.note("unchanged", self.before, base)
            for share in PLANTED:
                planted_s = {str(result.axes["width"]): share * _step_s(result) for result in base}
                self.note(f"{share:.0%} planted", base, self.run(f"{number}-{share:g}", planted_s))
        self.before = base

    def run(self, name: str, planted_s: Mapping[str, float]) -> list[Result]:
        store = Store(self.folder / name)
        if not store.root.exists():  # kept from before
            subprocess.run(
                [sys.executable, "-m", "bench.cli", "run", str(self.matrix), "--out", str(store.root.resolve())],
                cwd=WORKLOADS,
                env={**os.environ, "PYTHONPATH": str(ROOT), "PLANTED_S": json.dumps(planted_s)},
                check=True,
                capture_output=True,
            )
        return store.results()

    def note(self, what: str, base: list[Result], head: list[Result]) -> None:
        pairs = compare_runs(base, head).pairs
        self.verdicts.setdefault(what, []).append([pair.speed for pair in pairs])
        ratios = "  ".join(
            f"{r.estimate:.3f} ({r.alarm[0]:.3f}-{r.alarm[1]:.3f})" for pair in pairs if (r := pair.ratio)
        )
        verdicts = " ".join(f"{pair.speed}/{pair.space}" for pair in pairs)
        print(f"{what:<12} {ratios}  {verdicts}", flush=True)

    def show(self) -> int:
        wanted = {
            "itself": ("SAME everywhere", lambda verdicts: set(verdicts) == {"SAME"}),
            "unchanged": ("never SLOWER or FASTER", lambda verdicts: not {"SLOWER", "FASTER"} & set(verdicts)),
            "30% planted": ("SLOWER everywhere", lambda verdicts: set(verdicts) == {"SLOWER"}),
            "10% planted": ("never SAME or FASTER", lambda verdicts: not {"SAME", "FASTER"} & set(verdicts)),
        }
        bad = 0
        for what, tries in self.verdicts.items():
            words, holds = wanted[what]
            held = sum(map(holds, tries))
            bad += held < len(tries)
            counts = ", ".join(f"{n} {v}" for v, n in Counter(v for verdicts in tries for v in verdicts).most_common())
            print(f"{what:<12} {counts:<40} {words}: {held} of {len(tries)} tries")
        return int(bad > 0)


def _step_s(result: Result) -> float:
    """The typical step of an attempt that was measured."""
    assert result.outcome.kind == "ok", result.outcome
    typical = typical_step([rank.step_times_s for rank in result.outcome.ranks])
    assert typical is not None
    return typical.time_s


if __name__ == "__main__":
    sys.exit(main())
