"""What `bench report` costs for ten thousand stored results, against merely parsing the same files; and its memory."""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent.parent))

from examples import MACHINE, ok, result

from bench.store.run_folder import Store

PARSE = """
import sys
from pathlib import Path
from bench.store.run_folder import Store
assert len(Store(Path(sys.argv[1])).results()) == int(sys.argv[2])
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch, "run")
        write(run, arguments.results)
        parse = [sys.executable, "-c", PARSE, str(run)]
        report = [sys.executable, "-m", "bench.cli", "report", str(run)]
        rounds = [
            (
                cost([*parse, str(arguments.results)]),
                cost([*report, "--full", "--output", str(Path(scratch, "report.md"))]),
            )
            for _ in range(arguments.rounds)
        ]
    peak_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e6
    print(f"{arguments.results} results; peak memory of either {peak_mb:.0f} MB")
    for number, kind in enumerate(("wall", "CPU")):
        pairs = [(parsed[number], reported[number]) for parsed, reported in rounds]
        parse_s, report_s = (median(column) for column in zip(*pairs, strict=True))
        ratios = ", ".join(f"{reported / parsed:.2f}" for parsed, reported in pairs)
        print(
            f"{kind} time: parse {parse_s:.1f} s, report {report_s:.1f} s, ratio {report_s / parse_s:.2f}"
            f" (of each round {ratios})"
        )


def write(run: Path, number: int) -> None:
    """A run of cells with four batches each, two ranks, fifty steps. Written without the care of `Store.finish`."""
    store = Store(run)
    backends, times_s = ("ddp", "fsdp", "zero2"), [0.1 + 0.001 * (step % 7) for step in range(50)]
    results = [
        result(
            ok(times_s, times_s, backend=backends[index % 3]),
            backend=backends[index % 3],
            batch=batch,
            axes={"num_cams": index},
        )
        for index in range(number // 4)
        for batch in (1, 2, 4, 8)
    ]
    with store.open(MACHINE, [each.attempt.cell for each in results[::4]], "name: many\n"):
        for each in results:
            folder = store.folder(each.attempt)
            folder.mkdir(parents=True)
            (folder / "result.json").write_text(each.model_dump_json(indent=1) + "\n")


def cost(command: list[str]) -> tuple[float, float]:
    """Seconds on the clock, and of the CPU: what else runs on the machine disturbs these least."""
    start, before = time.perf_counter(), os.times()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    after = os.times()
    cpu_s = after.children_user - before.children_user + after.children_system - before.children_system
    return time.perf_counter() - start, cpu_s


if __name__ == "__main__":
    main()
