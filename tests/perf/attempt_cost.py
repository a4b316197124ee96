"""What an attempt costs beside its own steps, and whether bench disturbs the steps that it times.

A fork of a warm rank server and an `accelerate launch` of its own are taken in turn within each round. The fork is
taken twice: its ratio to itself says what noise allows. Against the loop as a user writes it (bare.py), every other
step is bench's own, in one process, which is finer than noise.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

from bench import backends, machine, spool, workload
from bench.cell import Attempt, Cell, Measure
from bench.launch import prepare
from bench.launch.local import Executor, Forking, OwnLaunch
from bench.machine import Hardware
from bench.outcome import Ok, classify

BARE = Path(__file__).with_name("bare.py")


class Taken(NamedTuple):
    fixed_s: float
    """Wall time of the attempt less its own steps."""
    step_s: float
    """Lower quartile of the slowest rank's steps: neighbours on a shared machine only ever add."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--backends", default=",".join(backends.BACKENDS))
    arguments = parser.parse_args()
    hardware = machine.detect()
    print(f"{hardware.device}, {hardware.cores} cores; median (min-max) of {arguments.rounds} rounds")
    print("                  fixed cost of an attempt     step time")
    print("backend          fork s  launch s   ratio     fork/launch        bench/bare         fork/fork")
    with tempfile.TemporaryDirectory() as scratch:
        for backend in arguments.backends.split(","):
            rows = measure(backend, Path(scratch), hardware, arguments.rounds, arguments.steps)
            fork_s, launch_s = (median([row[0].fixed_s, row[1].fixed_s][column] for row in rows) for column in (0, 1))
            columns = [
                spread([row[0].step_s / row[1].step_s for row in rows]),
                spread([row[3] for row in rows]),
                spread([row[0].step_s / row[2].step_s for row in rows]),
            ]
            print(f"{backend:<15} {fork_s:>7.2f} {launch_s:>9.2f} {fork_s / launch_s:>7.2f}    ", *columns, flush=True)


def measure(
    backend: str, scratch: Path, hardware: Hardware, rounds: int, steps: int
) -> list[tuple[Taken, Taken, Taken, float]]:
    """Rows of fork, launch, fork again, and the ratio of bench's step to a bare one."""
    kind = workload.load("pi07")
    ranks = 1 if backend == "single" else hardware.devices or 2
    cell = Cell(
        backend=backend,
        workload="pi07",
        options=kind.Config(preset="tiny").model_dump(mode="json"),
        num_processes=ranks,
        mixed_precision="bf16",
        measure=Measure(warmup_steps=3, steps=steps, phase_steps=0),
    )
    attempt = Attempt(cell=cell, batch_per_rank=2)
    environment = backends.environment(ranks, hardware, os.environ)

    def new(what: str) -> Callable[[], Path]:
        return lambda: Path(tempfile.mkdtemp(prefix=f"{backend}-{what}", dir=scratch))

    def prepared() -> Path:
        folder = new("attempt")()
        for name, text in prepare.files(attempt, kind.units, hardware.device, environment, str(folder)).items():
            spool.write_text(folder / name, text)
        return folder

    def by(executor: Executor) -> Taken:
        folder, start = prepared(), time.perf_counter()
        ended = executor.run(cell, folder, 600, lambda _: None)
        wall_s = time.perf_counter() - start
        outcome = classify(ended.ranks, world_size=ranks, launcher=ended.launcher)
        assert isinstance(outcome, Ok), outcome
        own_s = max(rank.warmup_s + sum(rank.step_times_s) for rank in outcome.ranks)
        return Taken(wall_s - own_s, max(lower_quartile(rank.step_times_s) for rank in outcome.ranks))

    def bare() -> float:
        """The ratio of bench's step to the bare one, by medians, of the slower rank."""
        folder = prepared()
        launch = [sys.executable, "-m", "accelerate.commands.launch", "--main_process_port", "0"]
        command = [*launch, "--config_file", folder / "accelerate.yaml", BARE, folder]
        subprocess.run(command, env={**os.environ, **environment}, check=True, capture_output=True)
        steps_s = [json.loads(file.read_text()) for file in folder.glob("bare*.json")]
        return max(median(bench_s) for bench_s, _ in steps_s) / max(median(bare_s) for _, bare_s in steps_s)

    servers = Forking(new("servers"), hardware, ["model.workload"], lambda _: None, print)
    try:
        by(servers)  # starts them; its child tells them what to import
        return [(by(servers), by(OwnLaunch(hardware)), by(servers), bare()) for _ in range(rounds)]
    finally:
        servers.close()


def lower_quartile(times_s: list[float] | tuple[float, ...]) -> float:
    return quantiles(times_s, n=4)[0]


def spread(ratios: list[float]) -> str:
    return f"{median(ratios):>6.3f} ({min(ratios):.2f}-{max(ratios):.2f})"


if __name__ == "__main__":
    main()
