"""Whether the words of a report can be believed on this machine: real runs of two cells, equal or with a planted 5 %.

A trial is one `bench run` in its own folder, with its own rank servers: two cells of one rank that compute alike,
launched five times each, interleaved. In a planted trial, the second cell does 5 % more work a step, and the run goes
on `--until 2%`. Beside the report's word stands what an interval from the steps of the first launch alone says: that is
how reports called winners before they knew of launches.

Every trial is appended to a file as soon as it is done; the same command resumes. The exit code is 1 if the words do
not keep their promises: at most 1 in 20 equal trials called different, at least 9 in 10 planted ones found.
"""

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel

from bench.records.outcome import Ok, Result
from bench.report.speedup import compare_axis
from bench.report.summary import summarize
from bench.statistics.intervals import mean_interval
from bench.statistics.verdict import EVEN, TOO_CLOSE, UNDECIDED
from bench.store.run_folder import Store

ROOT = Path(__file__).parent.parent.parent
HERE = Path(__file__).parent
PLANTED = 0.05

Kind = Literal["equal", "planted"]
Condition = Literal["quiet", "busy"]
KINDS: tuple[Kind, ...] = ("equal", "planted")
CONDITIONS: tuple[Condition, ...] = ("quiet", "busy")


class Trial(BaseModel):
    """The result of one trial."""

    kind: Kind
    condition: Condition
    number: int
    word: str
    ratio: float
    """Throughput of the second cell divided by that of the first."""
    interval: tuple[float, float] | None
    launches: tuple[int, int]
    """Of each cell."""
    steps_word: str
    """By the steps of the first launch alone."""
    seconds: float

    @property
    def called_different(self) -> bool:
        return self.word == "faster"

    @property
    def found(self) -> bool:
        """Whether the planted difference is found, on the right side."""
        return self.word == "faster" and self.ratio < 1

    def covers(self, truth: float) -> bool:
        return self.interval is not None and self.interval[0] <= truth <= self.interval[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=40, help="Of each kind under each condition.")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--conditions", nargs="+", choices=CONDITIONS, default=CONDITIONS)
    parser.add_argument("--launches", type=int, default=5)
    parser.add_argument("--until", default="2%", help="For planted trials; empty: as many launches as for equal ones.")
    parser.add_argument("--budget", default="10m", help="Of --until, for each planted trial.")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--products", type=int, default=800, help="Matrix products a step.")
    parser.add_argument("--log", type=Path, default=Path("compare_trials.jsonl"), help="Where trials are appended.")
    parser.add_argument("--table", type=Path, help="Markdown file to write, such as reports/compare_trials.md.")
    arguments = parser.parse_args()
    done = read(arguments.log)
    known = {(trial.kind, trial.condition, trial.number) for trial in done}
    due = [
        (kind, condition, number)
        for condition in arguments.conditions
        for number in range(arguments.trials)
        for kind in arguments.kinds
        if (kind, condition, number) not in known
    ]
    print(f"{len(done)} trials stored in {arguments.log}, {len(due)} to do", flush=True)
    began = time.monotonic()
    for index, (kind, condition, number) in enumerate(due, 1):
        with beside(condition):
            trial = one(kind, condition, number, arguments)
        done.append(trial)
        with arguments.log.open("a") as log:
            log.write(trial.model_dump_json() + "\n")
        elapsed = time.monotonic() - began
        left = elapsed / index * (len(due) - index)
        within = "n/a" if trial.interval is None else f"{trial.interval[0]:.3f} to {trial.interval[1]:.3f}"
        print(
            f"{index}/{len(due)} {condition} {kind:<8} {trial.word:<9} {trial.ratio:.3f} ({within})"
            f" launches {sum(trial.launches)}, steps alone: {trial.steps_word:<9}"
            f" {trial.seconds:.0f} s; elapsed {elapsed / 60:.1f} min, left {left / 60:.1f} min",
            flush=True,
        )
    text = table(done, arguments)
    print(text)
    if arguments.table:
        arguments.table.write_text(text)
    return int(not promises_kept(done))


def read(log: Path) -> list[Trial]:
    """The stored trials; a last line that was cut off is ignored."""
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    return [Trial.model_validate_json(line) for line in lines if line.endswith("\n")]


@contextmanager
def beside(condition: Condition) -> Iterator[None]:
    """With a process that keeps one core busy, or without."""
    if condition == "quiet":
        yield
        return
    loop = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"
    with subprocess.Popen([sys.executable, "-c", loop]) as busy:
        try:
            yield
        finally:
            busy.kill()


def one(kind: Kind, condition: Condition, number: int, arguments: argparse.Namespace) -> Trial:
    began = time.monotonic()
    until = ["--until", arguments.until, "--budget", arguments.budget] if kind == "planted" and arguments.until else []
    with tempfile.TemporaryDirectory() as scratch:
        matrix, folder = Path(scratch) / "trial.yaml", Path(scratch) / "run"
        matrix.write_text(yaml.safe_dump(matrix_of(kind, arguments)))
        command = ["run", str(matrix), f"measure.launches={arguments.launches}", "--out", str(folder), *until]
        ran = subprocess.run(
            [sys.executable, "-m", "bench.cli", *command],
            cwd=HERE,
            # No calibration may help: a trial stands for a machine that is seen for the first time.
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "BENCH_STATE": str(Path(scratch))},
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.returncode:
            raise SystemExit(f"bench {' '.join(command)}\n{ran.stdout[-2000:]}\n{ran.stderr[-2000:]}")
        results = Store(folder).results()
    return judged(results, kind, condition, number, time.monotonic() - began)


def matrix_of(kind: Kind, arguments: argparse.Namespace) -> dict[str, object]:
    return {
        "name": "trial",
        "workload": {
            "name": "planted_work:Work",
            "products": arguments.products,
            "planted": PLANTED if kind == "planted" else 0.0,
        },
        "matrix": {"backend": "single", "twin": [0, 1], "batch": 2},
        "choices": ["twin"],
        "launch": {"num_processes": 1, "mixed_precision": "no"},
        "measure": {"warmup_steps": 3, "steps": arguments.steps, "phase_steps": 0},
    }


def judged(results: Sequence[Result], kind: Kind, condition: Condition, number: int, seconds: float) -> Trial:
    pairs = compare_axis(summarize(results), "twin", reference=0).speed_ups
    ratio = pairs[0].ratio
    of_twin = [[result for result in results if result.axes["twin"] == twin] for twin in (0, 1)]
    return Trial(
        kind=kind,
        condition=condition,
        number=number,
        word=ratio.word,
        ratio=ratio.estimate,
        interval=ratio.interval,
        launches=(len(of_twin[0]), len(of_twin[1])),
        steps_word=by_steps(*(min(launches, key=lambda result: result.attempt.launch) for launches in of_twin)),
        seconds=seconds,
    )


def by_steps(one: Result, other: Result) -> str:
    """The verdict of the rule before launches: even if the interval from the variation of steps contains 1."""
    logs, halves = [], []
    for result in (one, other):
        assert isinstance(result.outcome, Ok), result.outcome
        steps_s = result.outcome.ranks[0].step_times_s
        ends = mean_interval(steps_s)
        assert ends is not None
        logs.append(math.log(statistics.fmean(steps_s)))
        halves.append(math.log(ends[1] / ends[0]) / 2)
    return "even" if abs(logs[0] - logs[1]) <= math.hypot(*halves) else "different"


def table(trials: Sequence[Trial], arguments: argparse.Namespace) -> str:
    lines = [
        "# Can the words of a report be believed?",
        "",
        "Made by `make perf-compare` (tests/perf/compare_trials.py). A trial is one `bench run` of two cells of one"
        f" rank on a compute-bound step, {arguments.launches} launches each, interleaved, with rank servers of its own."
        f" A step has {arguments.products} small matrix products. Equal: both cells do the same work."
        f" Planted: the second does {PLANTED:.0%} more, with"
        f" `--until {arguments.until or 'nothing'} --budget {arguments.budget}`. Busy: beside a process that keeps one"
        " core busy.",
        "",
        "| cells | machine | independent trials | called different | even | too close to call | undecided | interval"
        " covers the truth | launches of both cells (mean, most) | ratio (mean, sd) | steps of one launch alone:"
        " called different |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for condition in CONDITIONS:
        for kind in KINDS:
            group = [trial for trial in trials if (trial.kind, trial.condition) == (kind, condition)]
            if group:
                lines.append(f"| {kind} | {condition} | {' | '.join(figures(group))} |")
    lines += [
        "",
        "The truth of equal cells is 1. That of planted cells is the mean ratio of all their trials: a part of a step"
        " is not the planted work. Steps of one launch alone: the 95 % interval from the steps of the first launch of"
        " each cell does not contain 1. This interval does not know how much launches differ.",
        "",
    ]
    return "\n".join(lines)


def figures(group: Sequence[Trial]) -> list[str]:
    n, ratios = len(group), [trial.ratio for trial in group]
    truth = 1.0 if group[0].kind == "equal" else statistics.fmean(ratios)
    launches = [sum(trial.launches) for trial in group]
    sd = f"{statistics.stdev(ratios):.4f}" if n > 1 else "n/a"
    return [
        str(n),
        f"{sum(trial.called_different for trial in group)}",
        *(f"{sum(trial.word == word for trial in group)}" for word in (EVEN, TOO_CLOSE, UNDECIDED)),
        f"{sum(trial.covers(truth) for trial in group)}",
        f"{statistics.fmean(launches):.1f}, {max(launches)}",
        f"{statistics.fmean(ratios):.4f}, {sd}",
        f"{sum(trial.steps_word == 'different' for trial in group)}",
    ]


def promises_kept(trials: Sequence[Trial]) -> bool:
    equal = [trial for trial in trials if trial.kind == "equal"]
    planted = [trial for trial in trials if trial.kind == "planted"]
    alarms, found = sum(trial.called_different for trial in equal), sum(trial.found for trial in planted)
    return alarms <= len(equal) / 20 and found >= 0.9 * len(planted)


if __name__ == "__main__":
    sys.exit(main())
