"""Whether `bench compare --fail-on-regression 5%` fails where steps got slower, and only there, on a busy machine.

A trial is two `bench run`s of one cell, each launched once, beside a process that takes 40 % of the CPU, and the gate.
In a planted trial, every third step of the second run takes 150 ms longer: the typical step does not change. Every
trial is appended to a file as soon as it is done; the same command resumes. The exit code is 1 unless the gate fails
in 19 of 20 planted trials, and in 1 of 20 unchanged ones at most.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml
from pydantic import BaseModel

ROOT = Path(__file__).parent.parent.parent
HERE = Path(__file__).parent
LONGER_S = 0.15
OTHERS = 0.4
"""Share of the CPU that the process beside a trial takes."""
CELL = {
    "name": "trial",
    "workload": {"name": "planted_work:Work", "products": 2400},
    "matrix": {"backend": "single", "batch": 2},
    "launch": {"num_processes": 1, "mixed_precision": "no"},
    "measure": {"warmup_steps": 3, "steps": 60, "phase_steps": 0, "launches": 1},
}
BESIDE = """
import os, sys, time
busy_s, period_s, parent = float(sys.argv[1]) * 0.05, 0.05, os.getppid()
while os.getppid() == parent:
    until = time.perf_counter() + busy_s
    while time.perf_counter() < until:
        pass
    time.sleep(period_s - busy_s)
"""


class Trial(BaseModel):
    """The result of one trial."""

    planted: bool
    number: int
    verdict: str
    fails: bool
    """Whether the gate does."""
    said: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=20, help="Planted, and as many unchanged.")
    parser.add_argument("--log", type=Path, default=Path("gate_trials.jsonl"), help="Where trials are appended.")
    parser.add_argument("--table", type=Path, help="Markdown file to write, such as reports/gate_trials.md.")
    arguments = parser.parse_args()
    lines = arguments.log.read_text().splitlines(keepends=True) if arguments.log.exists() else []
    done = [Trial.model_validate_json(line) for line in lines if line.endswith("\n")]
    known = {(trial.planted, trial.number) for trial in done}
    due = [
        (planted, number)
        for number in range(arguments.trials)
        for planted in (False, True)
        if (planted, number) not in known
    ]
    for index, (planted, number) in enumerate(due, 1):
        with beside():
            trial = one(planted, number)
        done.append(trial)
        with arguments.log.open("a") as log:
            log.write(trial.model_dump_json() + "\n")
        print(f"{index}/{len(due)} {'planted' if planted else 'unchanged'}: {trial.verdict}, {trial.said}", flush=True)
    text = table(done)
    print(text)
    if arguments.table:
        arguments.table.write_text(text)
    found, alarms = (sum(trial.fails for trial in done if trial.planted is planted) for planted in (True, False))
    return int(found < 0.95 * arguments.trials or alarms > arguments.trials / 20)


@contextmanager
def beside() -> Iterator[None]:
    """With processes that take their share of every core."""
    cores = os.cpu_count() or 1
    busy = [subprocess.Popen([sys.executable, "-c", BESIDE, str(OTHERS)]) for _ in range(cores)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def one(planted: bool, number: int) -> Trial:
    with tempfile.TemporaryDirectory() as scratch:
        matrix = Path(scratch) / "trial.yaml"
        matrix.write_text(yaml.safe_dump(CELL))
        for name, longer_s in (("base", 0.0), ("head", LONGER_S if planted else 0.0)):
            bench("run", str(matrix), "--out", f"{scratch}/{name}", scratch=scratch, longer_s=longer_s)
        gate = ["compare", f"{scratch}/base", f"{scratch}/head", "--fail-on-regression", "5%"]
        compared = bench(*gate, scratch=scratch, may_fail=True)
    step = re.search(r"Step: 1 ([A-Z ]+)\.", compared.stdout)
    said = compared.stderr.strip().splitlines()
    return Trial(
        planted=planted,
        number=number,
        verdict=step[1] if step else "n/a",
        fails=compared.returncode == 1,
        said=said[0] if said else "",
    )


def bench(
    *arguments: str, scratch: str, longer_s: float = 0.0, may_fail: bool = False
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "bench.cli", *arguments],
        cwd=HERE,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "BENCH_STATE": scratch,  # no calibration may help
            "PLANTED_S": str(longer_s),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in ((0, 1) if may_fail else (0,)):
        raise SystemExit(f"bench {' '.join(arguments)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return done


def table(trials: Sequence[Trial]) -> str:
    lines = [
        "# Does the gate fail where steps got slower, and only there?",
        "",
        "Made by `make perf-gate` (tests/perf/gate_trials.py). A trial is two `bench run`s of one cell of one rank,"
        f" each launched once with 60 steps, beside processes that take {OTHERS:.0%} of the CPU, and `bench compare"
        " base head --fail-on-regression 5%`. Planted: every third step of head takes"
        f" {LONGER_S * 1000:.0f} ms longer.",
        "",
        "| head | trials | the gate fails | verdicts |",
        "| --- | ---: | ---: | --- |",
    ]
    for planted in (True, False):
        group = [trial for trial in trials if trial.planted is planted]
        words = ", ".join(f"{n} {word}" for word, n in Counter(trial.verdict for trial in group).most_common())
        name = "planted" if planted else "unchanged"
        lines.append(f"| {name} | {len(group)} | {sum(trial.fails for trial in group)} | {words} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main())
