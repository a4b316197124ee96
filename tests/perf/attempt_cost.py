"""What an attempt costs beside its own steps, and whether bench disturbs the steps that it times.

Fixed cost: a fork of a warm rank server and an `accelerate launch` of its own, in turn. Step time: a fork, an own
launch and a fork of other servers are under way at once and take each step in turn (turns.py), so that what disturbs
the machine disturbs all alike: in bursts of a second, it was seen to change by 10 % from one to the next. What is left
is how a process happens to lie in memory, some 3 %. Forks of one server lie alike, so each round starts new servers,
and it starts the three in another order, in case the first is the slower for it. Against the loop as a user writes it
(bare.py), every other step is bench's own, in one process. What noise allows: each mean's 95 % interval over rounds,
and the ratio of the two forks, which is 1 but for it.

`--workload hf:gpt2 --backends single,ddp` takes only the fixed costs: `single` has a thread for each core.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from itertools import cycle, islice, permutations
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

from rich.console import Console
from rich.progress import track
from scipy.stats import ttest_1samp

from bench import backends, machine, workloads
from bench.diagnosis.classify import classify
from bench.launch import attempt_files
from bench.launch.accelerate_launch import OwnLaunch
from bench.launch.environment import added_environment, launch_environment
from bench.launch.executor import Context, Executor
from bench.launch.rank_servers import Forking
from bench.launch.watch import Limits
from bench.records.cell import Attempt, Cell, Measure
from bench.records.machine import Hardware
from bench.records.outcome import Ok
from bench.store import spool

BARE = Path(__file__).with_name("bare.py")
ORDERS = list(permutations(range(3)))
HERE = str(Path(__file__).parent)
PAIRS = 3  # of attempts whose fixed cost is taken
BARES = 6
OPTIONS: dict[str, dict[str, object]] = {
    "pi07": {"preset": "tiny"},
    "hf:gpt2": {"n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 96, "seq_len": 32},
}
"""By workload."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--backends", default=",".join(backends.BACKENDS))
    parser.add_argument("--workload", default="pi07", choices=OPTIONS)
    arguments = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([HERE, *filter(None, [os.environ.get("PYTHONPATH")])])
    hardware, rounds = machine.detect(), arguments.rounds
    print(f"{hardware.device}, {hardware.cores} cores; fixed cost: median of {PAIRS}")
    print(f"step time: mean of {rounds} rounds, {BARES} against bare, its 95 % interval (min-max)")
    print("                  fixed cost of an attempt   step time")
    print(f"backend          fork s  launch s   ratio   {'forks/launch':<34}{'fork/fork':<34}bench/bare", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        for backend in track(arguments.backends.split(","), "attempt cost", console=Console(stderr=True)):
            trial = Trial(backend, Path(scratch), hardware, arguments.steps, arguments.workload)
            costs = trial.fixed_costs()
            if arguments.workload != "pi07":
                print(costs_of(backend, costs), flush=True)
                continue
            found = [trial.round(order) for order in islice(cycle(ORDERS), rounds)]
            show(backend, costs, found, [trial.bare() for _ in range(BARES)])


class FixedCosts(NamedTuple):
    """Wall times of attempts less their own steps."""

    fork_s: list[float]
    launch_s: list[float]


class Round(NamedTuple):
    """Ratios of step times."""

    forks_to_launch: float
    fork_to_fork: float


class Trial:
    """One backend's measurements."""

    def __init__(self, backend: str, scratch: Path, hardware: Hardware, steps: int, workload: str = "pi07") -> None:
        self.backend, self.scratch, self.hardware = backend, scratch, hardware
        self.kind = workloads.load(workload)
        self.ranks = 1 if backend == "single" else hardware.devices or 2
        self.cell = Cell(
            backend=backend,
            workload=workload,
            options=self.kind.Config.model_validate(OPTIONS[workload]).model_dump(mode="json"),
            num_processes=self.ranks,
            mixed_precision="bf16",
            measure=Measure(warmup_steps=3, steps=steps, phase_steps=0),
        )
        self.environment = added_environment(self.ranks, hardware, os.environ)

    def fixed_costs(self) -> FixedCosts:
        with closing(self.servers()) as fork, closing(OwnLaunch(self.hardware)) as launch:
            self.fixed_s(fork)  # starts the servers
            pairs = [(self.fixed_s(fork), self.fixed_s(launch)) for _ in range(PAIRS)]
        return FixedCosts(*map(list, zip(*pairs, strict=True)))

    def round(self, order: Sequence[int]) -> Round:
        """The three start in the given order."""
        # Each step is held against those next to it.
        steps = self.in_turns([self.servers(), self.servers(), OwnLaunch(self.hardware)], order)
        return Round(
            median(fork / own for *forks, own in steps for fork in forks),
            median(fork / other for fork, other, _ in steps),
        )

    def servers(self) -> Forking:
        return Forking(
            Context(
                hardware=self.hardware,
                new_folder=self.new("servers"),
                preloads={self.ranks: backends.preloads(self.cell)},
                modules=workloads.modules_of(self.cell.workload),
                waiting=lambda _: None,
                note=print,
            )
        )

    def new(self, what: str) -> Callable[[], Path]:
        return lambda: Path(tempfile.mkdtemp(prefix=f"{self.backend}-{what}", dir=self.scratch))

    def prepared(self, **changes: object) -> Path:
        folder, attempt = self.new("attempt")(), Attempt(cell=self.cell.model_copy(update=changes), batch_per_rank=2)
        units, device = self.kind.units, self.hardware.device
        for name, text in attempt_files.files(attempt, units, device, self.environment, str(folder)).items():
            spool.write_text(folder / name, text)
        return folder

    def run(self, executor: Executor, folder: Path) -> Ok:
        ended = executor.run(self.cell, folder, Limits(1200, None), lambda _: None)
        outcome = classify(ended.ranks, world_size=self.ranks, launcher_error=ended.launcher_error)
        assert isinstance(outcome, Ok), outcome
        return outcome

    def fixed_s(self, executor: Executor) -> float:
        """Wall time of an attempt less its own steps."""
        folder = self.prepared(measure=Measure(warmup_steps=1, steps=1, phase_steps=0))
        start = time.perf_counter()
        outcome = self.run(executor, folder)
        wall_s = time.perf_counter() - start
        return wall_s - max(rank.warmup_s + sum(rank.step_times_s) for rank in outcome.ranks)

    def in_turns(self, executors: Sequence[Executor], order: Sequence[int]) -> list[tuple[float, ...]]:
        """Each step's times, one of each executor's attempt, by its slower rank."""
        folders = [self.prepared(workload="turns:InTurns") for _ in executors]
        found: list[list[float]] = [[] for _ in executors]

        def attempt(index: int) -> None:
            with closing(executors[index]) as executor:
                ranks = self.run(executor, folders[index]).ranks
            found[index] = [max(times) for times in zip(*(rank.step_times_s for rank in ranks), strict=True)]

        # Daemons: where one fails, nobody lets the others' ranks go on.
        threads = [threading.Thread(target=attempt, args=[index], daemon=True) for index in range(len(executors))]
        stops = [self.stops(folder, thread) for folder, thread in zip(folders, threads, strict=True)]
        for turns in ([[stops[index] for index in order]], islice(cycle(permutations(stops)), self.cell.measure.steps)):
            for turn in turns:
                for stop in turn:
                    next(stop)
        return list(zip(*found, strict=True))

    def stops(self, folder: Path, thread: threading.Thread) -> Iterator[None]:
        """Starts the attempt, or lets it go on, to its ranks' next stop or its end."""
        thread.start()
        while len(ranks := ranks_of(folder)) < self.ranks or not all(map(stopped, ranks)):
            assert thread.is_alive()
            time.sleep(0.05)
        yield
        for _ in range(self.cell.measure.steps - 1):
            let_go_on(ranks)
            while not all(map(stopped, ranks)):
                assert thread.is_alive()
                time.sleep(0.005)
            yield
        let_go_on(ranks)
        thread.join()
        yield

    def bare(self) -> float:
        """The ratio of bench's step to the bare one next to it, by the slower rank of each; the median."""
        folder = self.prepared()
        launch = [sys.executable, "-m", "accelerate.commands.launch", "--main_process_port", "0"]
        command = [*launch, "--config_file", str(folder / "accelerate.yaml"), str(BARE), str(folder)]
        environment = launch_environment(os.environ, self.environment)
        subprocess.run(command, env=environment, check=True, capture_output=True)
        ranks = [json.loads(file.read_text()) for file in folder.glob("bare*.json")]
        bench_s, bare_s = (
            [max(times) for times in zip(*of_ranks, strict=True)] for of_ranks in zip(*ranks, strict=True)
        )
        return float(median(bench / bare for bench, bare in zip(bench_s, bare_s, strict=True)))


def ranks_of(folder: Path) -> list[int]:
    """The processes that beat in the folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            opened = [os.readlink(file) for file in (process / "fd").iterdir()]
        except OSError:
            continue  # it has ended
        if any(file.startswith(f"{folder}/rank") and file.endswith(".beat") for file in opened):
            found.append(int(process.name))
    return found


def stopped(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].startswith("T")
    except OSError:
        return False  # it has ended


def let_go_on(processes: Sequence[int]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):  # its attempt will say so
            os.kill(process, signal.SIGCONT)


def show(backend: str, costs: FixedCosts, rounds: Sequence[Round], bench_to_bare: Sequence[float]) -> None:
    ratios = [*zip(*rounds, strict=True), bench_to_bare]
    columns = " ".join(f"{spread(column):<34}" for column in ratios).rstrip()
    print(f"{costs_of(backend, costs)}   {columns}", flush=True)


def costs_of(backend: str, costs: FixedCosts) -> str:
    fork_s, launch_s = median(costs.fork_s), median(costs.launch_s)
    return f"{backend:<15} {fork_s:>7.2f} {launch_s:>9.2f} {fork_s / launch_s:>7.2f}"


def spread(values: Sequence[float]) -> str:
    low, high = ttest_1samp(values, 1.0).confidence_interval(0.95)
    return f"{fmean(values):.3f}, {low:.3f}-{high:.3f} ({min(values):.3f}-{max(values):.3f})"


if __name__ == "__main__":
    main()
