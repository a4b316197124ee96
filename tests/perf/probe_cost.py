"""What a certified batch costs: `bench`'s search against the loop that a user would write.

The loop doubles the batch in one `accelerate launch` after the other until memory runs out, then bisects to the same
answer: a batch that fits and the next one that does not. Both use attempts of the same few steps on the same cells,
taken in turn. The search's own extra, best and safe at the full step count, is timed apart.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from bench import backends, machine, workloads
from bench.diagnosis.classify import classify
from bench.launch import attempt_files
from bench.launch.accelerate_launch import OwnLaunch
from bench.launch.environment import added_environment
from bench.launch.executor import Context, Executor, LaunchResult
from bench.launch.rank_servers import Forking
from bench.launch.watch import Limits
from bench.records.cell import Attempt, Cell, Measure, Walk
from bench.records.outcome import Result
from bench.records.rank_outcome import Walked
from bench.records.verdict import Goal, Verdict
from bench.store import spool
from bench.sweep import probe

HARDWARE = machine.detect()
MACHINE = machine.record(HARDWARE)
WORKLOAD = workloads.load("pi07")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backends", default="ddp,fsdp,zero2")
    parser.add_argument("--granularity", type=int, default=1)
    # Each backend's largest batch takes 1009 to 1023 MiB here, the next one 25 more: malloc cannot decide between them.
    parser.add_argument("--memory-limit-mib", type=int, default=1028)
    arguments = parser.parse_args()
    goal = Goal(granularity=arguments.granularity)
    totals = [0.0, 0.0]
    with tempfile.TemporaryDirectory() as scratch:

        def new() -> Path:
            return Path(tempfile.mkdtemp(dir=scratch))

        families = {backends.BACKENDS[name].family for name in arguments.backends.split(",")}
        modules = sorted({module for family in families for module in backends.FAMILIES[family].preloads})
        servers = Forking(
            Context(
                hardware=HARDWARE,
                new_folder=new,
                preloads=dict.fromkeys((1, HARDWARE.devices or 2), modules),
                modules=["bench.model.workload"],
                waiting=lambda _: None,
                note=print,
            )
        )
        print(
            f"{HARDWARE.device}, {HARDWARE.cores} cores, {arguments.memory_limit_mib} MiB a rank, granularity"
            f" {goal.granularity}"
        )
        print("backend         bench: attempts  max s  best and safe s    loop: launches      s   ratio   answers")
        try:
            for name in arguments.backends.split(","):
                cell = _cell(name, arguments.memory_limit_mib * 2**20)
                start = time.perf_counter()
                found, attempts, max_s = _search(cell, goal, servers, new)
                whole_s = time.perf_counter() - start
                start = time.perf_counter()
                answer, launches = _loop(cell, goal, OwnLaunch(HARDWARE), new)
                loop_s = time.perf_counter() - start
                totals[0] += max_s
                totals[1] += loop_s
                same = "agree" if found == answer else "DIFFER"
                print(
                    f"{name:<15} {attempts:>15} {max_s:>6.1f} {whole_s - max_s:>16.1f} {launches:>17}"
                    f" {loop_s:>6.1f} {max_s / loop_s:>7.2f}   {same}: {found} and {answer}",
                    flush=True,
                )
        finally:
            servers.close()
    print(
        f"in all, the start of the servers counted: {totals[0]:.1f} s against {totals[1]:.1f} s,"
        f" ratio {totals[0] / totals[1]:.2f}"
    )


def _cell(backend: str, limit_bytes: int) -> Cell:
    return Cell(
        backend=backend,
        workload="pi07",
        # Nearly all memory is the logits of this narrow model, 8 MiB a sample: blocks so large that malloc maps each
        # alone, so that a peak varies by less than a sample. In fp32, since CPUs without instructions for bf16 compute
        # with it so slowly that both sides would be timed by their arithmetic alone.
        options=WORKLOAD.Config(
            preset="tiny",
            n_layers=1,
            n_heads=2,
            n_kv_heads=1,
            head_dim=16,
            backbone_hidden=32,
            backbone_mlp=64,
            expert_hidden=32,
            expert_mlp=64,
            vision_layers=1,
            vision_hidden=32,
            vision_mlp=64,
            num_cams=1,
            n_obs_history=1,
            vocab_size=16384,
            action_token_len=128,
        ).model_dump(mode="json"),
        num_processes=2,
        mixed_precision="no",
        memory_limit_bytes=limit_bytes,
        measure=Measure(warmup_steps=2, steps=5, phase_steps=3),
    )


def _launch(attempt: Attempt | Walk, executor: Executor, folder: Path) -> LaunchResult:
    environment = added_environment(attempt.cell.num_processes, HARDWARE, os.environ)
    for name, text in attempt_files.files(attempt, WORKLOAD.units, HARDWARE.device, environment, str(folder)).items():
        spool.write_text(folder / name, text)
    return executor.run(attempt.cell, folder, Limits(600, None), lambda _: None)


def _result(attempt: Attempt, executor: Executor, folder: Path) -> Result:
    start = time.perf_counter()
    ended = _launch(attempt, executor, folder)
    outcome = classify(ended.ranks, world_size=attempt.cell.num_processes, launcher_error=ended.launcher_error)
    now = datetime.now(UTC).isoformat()
    return Result(
        attempt=attempt,
        axes={},
        outcome=outcome,
        machine=MACHINE,
        isolation=ended.isolation,
        started_at=now,
        wall_s=time.perf_counter() - start,
    )


def _search(cell: Cell, goal: Goal, executor: Executor, new: Callable[[], Path]) -> tuple[int | None, int, float]:
    """Max, attempts until it was certified (the walk counted), and the seconds that took."""
    start, certified_s, attempts = time.perf_counter(), 0.0, 0
    fitting, failing = set[int](), set[int]()

    def walk(batches: tuple[int, ...]) -> list[Walked]:
        nonlocal attempts
        attempts += 1
        folder = new()
        _launch(Walk(cell=cell, batches_per_rank=batches), executor, folder)
        ranks = [spool.read(folder / f"walk{rank}.json", Walked) for rank in range(cell.num_processes)]
        return [rank for rank in ranks if rank is not None]

    def attempt(batch: int, full: bool, _why: str) -> Result:
        nonlocal attempts, certified_s
        result = _result(Attempt(cell=cell, batch_per_rank=batch, short=not full), executor, new())
        if not certified_s:
            attempts += 1
            (fitting if result.outcome.kind == "ok" else failing).add(batch)
            if {fits + goal.granularity for fits in fitting} & failing:
                certified_s = time.perf_counter() - start
        return result

    found = probe.search(goal, None, [], [], walk, attempt)
    assert isinstance(found, Verdict), found
    return found.max_batch_per_rank, attempts, certified_s


def _loop(cell: Cell, goal: Goal, executor: Executor, new: Callable[[], Path]) -> tuple[int, int]:
    launches = 0

    def fits(batch: int) -> bool:
        nonlocal launches
        launches += 1
        return _result(Attempt(cell=cell, batch_per_rank=batch, short=True), executor, new()).outcome.kind == "ok"

    low, high = 0, goal.granularity
    while fits(high):
        low, high = high, high * 2
    while high - low > goal.granularity:
        middle = goal.down((low + high) / 2)
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low, launches


if __name__ == "__main__":
    main()
