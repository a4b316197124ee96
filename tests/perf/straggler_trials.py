"""How often bench names a straggler where there is none, and how often it finds a planted one, on this machine.

Clean: the bundled policy, nothing planted. Planted in rank 1: 100 ms in the loader, 50 ms in forward, or a core that a
busy process uses. Each trial is a `bench run` of its own, so that the ranks are new processes.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import yaml

from bench.report.rows import Sampled
from bench.report.summary import summarize
from bench.store.run_folder import Store

TESTS = Path(__file__).parents[1]
TOY = {"name": "straggler:Toy", "width": 512}
PLANTED: dict[str, dict[str, object]] = {
    "100 ms in the loader": {**TOY, "slow": "loader", "slow_s": 0.1, "batch": 4},
    "50 ms in forward": {**TOY, "slow": "forward", "slow_s": 0.05, "batch": 4},
    "a busy core": {**TOY, "slow": "core", "width": 2048, "batch": 256},
}

AMOUNT = re.compile(r", by [\d.,]+ ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clean", type=int, default=20, help="runs without a straggler")
    parser.add_argument("--planted", type=int, default=3, help="runs of each planted straggler")
    parser.add_argument("--backends", default="ddp,fsdp,zero2")
    parser.add_argument("--table", type=Path, help="Markdown file to write, such as reports/straggler_trials.md.")
    arguments = parser.parse_args()
    backends = arguments.backends.split(",")
    counts: Counter[tuple[str, str, str]] = Counter()
    trials = ["nothing"] * arguments.clean + list(PLANTED) * arguments.planted
    for plant in trials:
        workload = PLANTED.get(plant, {"name": "pi07", "preset": "tiny"})
        print(plant, flush=True)
        for backend, named in trial(workload, backends):
            print(f"  {backend:8} {named}", flush=True)
            counts[plant, backend, AMOUNT.sub("", named)] += 1
    text = table(counts)
    print(f"\n{text}")
    if arguments.table:
        arguments.table.write_text(text)


def table(counts: Counter[tuple[str, str, str]]) -> str:
    lines = [
        "# Are stragglers named, and no others?",
        "",
        "Made by `make perf-stragglers` (tests/perf/straggler_trials.py) on two ranks that share two cores. Each run"
        " has new ranks and the default settings of a CPU: 5 phase steps. Nothing is planted into the bundled policy"
        " `tiny`; the rest is planted into rank 1 of a small workload.",
        "",
        "| planted | backend | slowest rank | runs |",
        "| --- | --- | --- | ---: |",
        *(f"| {plant} | {backend} | {named} | {times} |" for (plant, backend, named), times in sorted(counts.items())),
    ]
    return "\n".join(lines) + "\n"


def trial(workload: dict[str, object], backends: list[str]) -> Iterator[tuple[str, str]]:
    """Each backend and what gates its step, in words, of one run."""
    with tempfile.TemporaryDirectory() as folder:
        matrix = Path(folder, "matrix.yaml")
        batch = workload.get("batch", 4)
        fixed = {name: value for name, value in workload.items() if name != "batch" or "slow" in workload}
        content = {"workload": fixed, "matrix": {"backend": backends, "batch": [batch]}, "measure": {"launches": 1}}
        matrix.write_text(yaml.safe_dump(content))
        command = [sys.executable, "-m", "bench.cli", "run", str(matrix), "--out", str(Path(folder, "run"))]
        path = os.pathsep.join(map(str, (TESTS.parent, TESTS / "faults", TESTS / "e2e")))
        subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.DEVNULL, check=True)
        for row in summarize(Store(Path(folder, "run")).results()).rows:
            gate = row.measured.critical_rank if isinstance(row.measured, Sampled) else None
            yield str(row.settings["backend"]), gate.words if gate else row.outcome


if __name__ == "__main__":
    main()
