"""Whether a long run stays as it was: a thousand attempts through one pair of rank servers, watched from outside.

After every hundred attempts bench is halted (SIGSTOP) until the servers have no child, and each process is looked at.
What it holds after the first hundred is the measure: memory may grow by one percent, and descriptors, threads and
children, zombies among them, not at all. In the end no process may be left.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil
import yaml

from bench.store import spool
from bench.store.spool import Request, ServerState

E2E = Path(__file__).parent.parent / "e2e"
MARK = "BENCH_SOAK_RUN"
MOST_GROWTH = 0.01
TABLE_BYTES = 2**20
"""On top of that, for bench: CPython's table of interned strings, which names of paths pass through, doubles once."""
LOOKS = 5
"""Of these the least counts: a file that is open just then is open for a moment only."""


class Held(NamedTuple):
    """What one process holds."""

    rss_bytes: int
    uss_bytes: int
    """What would be free if it ended. With no child alive it shares no memory of its own."""
    descriptors: int
    threads: int
    children: int


Sight = dict[str, Held]
"""What each process of the run held, by its name."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attempts", type=int, default=1000)
    parser.add_argument("--every", type=int, default=100)
    arguments = parser.parse_args()
    planned = arguments.attempts + 2 * LOOKS  # at the last look it is still at work
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch, "run")
        with Path(scratch, "output").open("w+") as output:
            bench = start(run, planned, mark, output.fileno())
            print(
                f"{'attempts':>8}  {'process':8} {'RSS MB':>9} {'USS MB':>9} descriptors threads children", flush=True
            )
            sights = list(watch(bench, run, arguments.attempts, arguments.every))
            returncode = bench.wait()
            output.seek(0)
            problems = grown(sights)
            if returncode != 0:
                problems.append(f"bench ended with {returncode}: {output.read()[-2000:]}")
        finished = len(list(run.glob("attempts/*/b1/result.json")))
        if finished != planned or len(list(run.glob("servers/*"))) != 1:
            problems.append(f"{finished} attempts were finished, or the servers were replaced")
        problems += [f"left behind: {process}" for process in left(mark)]
    print("\n".join(["FAILED", *problems]) if problems else "STEADY")
    return 1 if problems else 0


def start(run: Path, attempts: int, mark: str, output: int) -> "subprocess.Popen[bytes]":
    matrix = run.with_name("soak.yaml")
    axes = {"num_cams": [*range(1, attempts // 2 + 1)], "backend": ["ddp", "fsdp"], "batch": 1}
    measure = {"warmup_steps": 1, "steps": 1, "phase_steps": 0, "launches": 1}
    matrix.write_text(
        yaml.safe_dump({"workload": {"name": "toy:Toy"}, "matrix": axes, "measure": measure}, sort_keys=False)
    )
    return subprocess.Popen(
        [sys.executable, "-m", "bench.cli", "run", str(matrix), "--out", str(run)],
        cwd=E2E,
        env={**os.environ, MARK: mark, "PYTHONPATH": str(E2E.parent.parent)},
        stdout=output,
        stderr=output,
    )


def watch(bench: "subprocess.Popen[bytes]", run: Path, attempts: int, every: int) -> Iterator[Sight]:
    """The run's processes after every so many attempts, as long as it goes on."""
    spools = run / "servers" / "0"
    begun = time.monotonic()
    for due in range(every, attempts + 1, every):
        while min((server.finished for server in servers(spools)), default=0) < due:
            if bench.poll() is not None:
                return
            time.sleep(0.05)
        looks = [look(bench, spools) for _ in range(LOOKS)]
        sight = {name: Held(*map(min, zip(*(each[name] for each in looks), strict=True))) for name in looks[0]}
        for name, one in sight.items():
            figures = f"{one.rss_bytes / 1e6:9.2f} {one.uss_bytes / 1e6:9.2f} {one.descriptors:11} {one.threads:7}"
            print(f"{due:8}  {name:8} {figures} {one.children:8}", flush=True)
        print(f"{due:8}  {(time.monotonic() - begun) / due:.2f} s an attempt", flush=True)
        yield sight


def look(bench: "subprocess.Popen[bytes]", spools: Path) -> Sight:
    """Halts bench, waits for the attempt under way, and lets it go on."""
    os.kill(bench.pid, signal.SIGSTOP)
    while (asked := spool.read(spools / "request.json", Request)) and any(
        server.finished < asked.number for server in servers(spools)
    ):
        time.sleep(0.05)
    sight = {"bench": held(bench.pid), **{f"server {one.rank}": held(one.pid) for one in servers(spools)}}
    os.kill(bench.pid, signal.SIGCONT)
    time.sleep(0.1)
    return sight


def servers(spools: Path) -> list[ServerState]:
    return [state for file in sorted(spools.glob("server?.json")) if (state := spool.read(file, ServerState))]


def held(pid: int) -> Held:
    process = psutil.Process(pid)
    memory = process.memory_full_info()
    return Held(memory.rss, memory.uss, process.num_fds(), process.num_threads(), len(process.children(recursive=True)))


def grown(sights: Sequence[Sight]) -> list[str]:
    """What a process holds more of than at the first sight, in words."""
    if len(sights) < 2:
        return ["too few attempts to tell"]
    return [
        f"{name}: {field} grew from {before:,} to {most:,}"
        for name in sights[0]
        for field, *held in zip(Held._fields, *(sight[name] for sight in sights), strict=True)
        if (most := max(held)) > allowed(name, field, before := held[0])
    ]


def allowed(name: str, field: str, before: int) -> float:
    if not field.endswith("_bytes"):
        return before
    return before * (1 + MOST_GROWTH) + (TABLE_BYTES if name == "bench" else 0)


def left(mark: str) -> list[psutil.Process]:
    """Processes of the run that are still there, after a moment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark:
                found.append(process)
        except psutil.Error:
            continue
    _, alive = psutil.wait_procs(found, timeout=5)
    return alive


if __name__ == "__main__":
    sys.exit(main())
