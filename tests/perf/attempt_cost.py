"""What an attempt costs beside its own steps, and whether bench disturbs the steps that it times.

Fixed cost: a fork of a warm rank server and an `accelerate launch` of its own, in turn. Step time: a fork, an own
launch and a second fork are under way at once and halted in turn (SIGSTOP), so that what disturbs the machine disturbs
all alike. What they differ by then is mostly how one process's memory lies against another's, so many processes of few
steps say more than few of many, and each sitting starts servers anew: forks of one server lie alike. Against the loop
as a user writes it (bare.py), every other step is bench's own, in one process. What noise allows: each ratio's 95 %
interval, and the ratio of the two forks to each other, which is 1 but for it. `--backends fsdp --sittings 4` asks one
backend more closely.
"""

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

from rich.console import Console
from rich.progress import track
from scipy.stats.mstats import trimmed_mean, trimmed_mean_ci

from bench import backends, machine, spool, workload
from bench.cell import Attempt, Cell, Measure
from bench.classify import classify
from bench.launch import prepare
from bench.launch.local import Executor, Forking, OwnLaunch
from bench.launch.watch import Limits
from bench.machine import Hardware
from bench.outcome import Ok

BARE = Path(__file__).with_name("bare.py")
BURST_S = 1.0
TURNS, BARES = 12, 3  # of each in a sitting
TRIM = (0.2, 0.2)  # nearly as sharp as the mean, and a disturbed process or two change nothing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sittings", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--backends", default=",".join(backends.BACKENDS))
    arguments = parser.parse_args()
    hardware, sittings = machine.detect(), arguments.sittings
    print(f"{hardware.device}, {hardware.cores} cores; fixed cost: median of {sittings} attempts each; step time:")
    print(f"trimmed mean, its 95 % interval (min-max) of {sittings * TURNS} rounds, of {sittings * BARES} against bare")
    print("                  fixed cost of an attempt   step time")
    print(f"backend          fork s  launch s   ratio   {'forks/launch':<34}{'fork/fork':<34}bench/bare", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        for backend in track(arguments.backends.split(","), "attempt cost", console=Console(stderr=True)):
            trial = Trial(backend, Path(scratch), hardware, arguments.steps)
            for _ in range(sittings):
                trial.sit()
            print(trial, flush=True)


class Fixed(NamedTuple):
    fork_s: float
    launch_s: float


class Turn(NamedTuple):
    """Step times."""

    fork_s: float
    launch_s: float
    again_s: float


class Trial:
    """One backend's measurements."""

    def __init__(self, backend: str, scratch: Path, hardware: Hardware, steps: int) -> None:
        self.backend, self.scratch, self.hardware = backend, scratch, hardware
        self.kind = workload.load("pi07")
        self.ranks = 1 if backend == "single" else hardware.devices or 2
        self.cell = Cell(
            backend=backend,
            workload="pi07",
            options=self.kind.Config(preset="tiny").model_dump(mode="json"),
            num_processes=self.ranks,
            mixed_precision="bf16",
            measure=Measure(warmup_steps=3, steps=steps, phase_steps=0),
        )
        self.environment = backends.environment(self.ranks, hardware, os.environ)
        self.fixed: list[Fixed] = []
        self.turns: list[Turn] = []
        self.bares: list[float] = []

    def sit(self) -> None:
        first, second, launch = self.servers(), self.servers(), OwnLaunch(self.hardware)
        try:
            self.fixed_s(first)  # starts them; their children tell them what to import
            self.fixed_s(second)
            self.fixed.append(Fixed(self.fixed_s(first), self.fixed_s(launch)))
            self.turns += [Turn(*self.in_turn([first, launch, second], turn)) for turn in range(TURNS)]
        finally:
            for servers in (first, second):
                servers.close()
        self.bares += [self.bare() for _ in range(BARES)]

    def __str__(self) -> str:
        fork_s, launch_s = (median(column) for column in zip(*self.fixed, strict=True))
        columns = [
            spread([fmean([fork, again]) / own for fork, own, again in self.turns]),
            spread([fork / again for fork, _, again in self.turns]),
            spread(self.bares),
        ]
        return f"{self.backend:<15} {fork_s:>7.2f} {launch_s:>9.2f} {fork_s / launch_s:>7.2f}   {' '.join(columns)}"

    def servers(self) -> Forking:
        return Forking(self.new("servers"), self.hardware, ["model.workload"], lambda _: None, print)

    def new(self, what: str) -> Callable[[], Path]:
        return lambda: Path(tempfile.mkdtemp(prefix=f"{self.backend}-{what}", dir=self.scratch))

    def prepared(self) -> Path:
        folder, attempt = self.new("attempt")(), Attempt(cell=self.cell, batch_per_rank=2)
        units, device = self.kind.units, self.hardware.device
        for name, text in prepare.files(attempt, units, device, self.environment, str(folder)).items():
            spool.write_text(folder / name, text)
        return folder

    def run(self, executor: Executor, folder: Path) -> Ok:
        ended = executor.run(self.cell, folder, Limits(1200, None), lambda _: None)
        outcome = classify(ended.ranks, world_size=self.ranks, launcher=ended.launcher)
        assert isinstance(outcome, Ok), outcome
        return outcome

    def fixed_s(self, executor: Executor) -> float:
        """Wall time of an attempt less its own steps."""
        folder, start = self.prepared(), time.perf_counter()
        outcome = self.run(executor, folder)
        wall_s = time.perf_counter() - start
        return wall_s - max(rank.warmup_s + sum(rank.step_times_s) for rank in outcome.ranks)

    def in_turn(self, executors: Sequence[Executor], turn: int) -> list[float]:
        """Each executor's median step time, by the slower rank of each step, while one at a time goes on.

        Another one comes first in each ``turn``: the first to start was seen to be up to 5 % slower to the end.
        """
        folders = [self.prepared() for _ in executors]
        found = [0.0 for _ in executors]

        def attempt(index: int) -> None:
            ranks = self.run(executors[index], folders[index]).ranks
            steps_s = [max(times) for times in zip(*(rank.step_times_s for rank in ranks), strict=True)]
            found[index] = median(time_s for time_s in steps_s if time_s < BURST_S)  # without those that were halted

        threads = [threading.Thread(target=attempt, args=[index]) for index in range(len(executors))]
        attempts = list(zip(folders, threads, strict=True))
        attempts = attempts[turn % len(attempts) :] + attempts[: turn % len(attempts)]
        for folder, thread in attempts:
            thread.start()
            while not all((beat := spool.read_beat(folder, rank)) and beat.step for rank in range(self.ranks)):
                assert thread.is_alive()
                time.sleep(0.02)
            send(folder, signal.SIGSTOP)
        for folder, thread in itertools.cycle(attempts):
            if not any(each.is_alive() for each in threads):
                return found
            send(folder, signal.SIGCONT)
            thread.join(timeout=BURST_S)
            send(folder, signal.SIGSTOP)
        raise AssertionError

    def bare(self) -> float:
        """The ratio of bench's step to the bare one, by medians, of the slower rank."""
        folder = self.prepared()
        launch = [sys.executable, "-m", "accelerate.commands.launch", "--main_process_port", "0"]
        command = [*launch, "--config_file", str(folder / "accelerate.yaml"), str(BARE), str(folder)]
        subprocess.run(command, env={**os.environ, **self.environment}, check=True, capture_output=True)
        steps_s = [json.loads(file.read_text()) for file in folder.glob("bare*.json")]
        return float(max(median(bench_s) for bench_s, _ in steps_s) / max(median(bare_s) for _, bare_s in steps_s))


def send(folder: Path, number: signal.Signals) -> None:
    """To the ranks that beat in the folder."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            opened = [os.readlink(file) for file in (process / "fd").iterdir()]
        except OSError:
            continue  # it has ended
        if any(file.startswith(f"{folder}/rank") and file.endswith(".beat") for file in opened):
            os.kill(int(process.name), number)


def spread(values: Sequence[float]) -> str:
    low, high = trimmed_mean_ci(values, TRIM)  # Tukey and McLaughlin's
    return f"{trimmed_mean(values, TRIM):>6.3f}, {low:.3f}-{high:.3f} ({min(values):.3f}-{max(values):.3f})"


if __name__ == "__main__":
    main()
