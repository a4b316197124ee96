"""Memory of a real GPU: errors, limits, and what is left over."""

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest
from checks import ANYWHERE, HARDWARE
from harness import HERE, ROOT, Bench, account_of, wait_for

from bench.records.account import END
from bench.records.outcome import Ok, Oom, Result
from bench.records.verdict import Verdict
from bench.store.run_folder import Store

MIB, GIB = 2**20, 2**30
MEASURE = {"warmup_steps": 1, "steps": 3, "phase_steps": 1}
TOO_MUCH_MIB = 2 * HARDWARE.memory_bytes // MIB
LEFT = 64 * MIB
"""What the driver may count differently from one moment to the next."""
PATHS = os.pathsep.join(map(str, (ROOT, HERE, Path(__file__).parent)))
Found = Callable[..., None]


def run(bench: Bench, cells: list[dict[str, Any]], name: str = "run", *, ranks: int = 1, **launch: Any) -> list[Result]:
    environment = launch.pop("environment", {})
    backend = "single" if ranks == 1 else "ddp"
    matrix = bench.matrix(
        workload={"name": "hungry:Hungry"},
        matrix={},
        include=[{"backend": backend, "batch": 2, **cell} for cell in cells],
        measure=MEASURE,
        launch={"num_processes": ranks, **launch},
    )
    process = bench.start("run", matrix, "--out", str(bench.folder / name), PYTHONPATH=PATHS, **environment)
    output, _ = process.communicate(timeout=600)
    assert process.returncode in (0, 1), output
    return bench.results(name)


def in_use() -> int:
    """Bytes of the first visible GPU, as the driver counts them."""
    if HARDWARE.device != "cuda":
        return 0
    pynvml.nvmlInit()
    try:
        gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        return int(pynvml.nvmlDeviceGetMemoryInfo(gpu, pynvml.nvmlMemory_v2).used)  # the first version counts reserved
    finally:
        pynvml.nvmlShutdown()


@pytest.mark.parametrize("way", ["forward", "backward"])
def test_running_out_of_memory(bench: Bench, found: Found, way: str) -> None:
    """Running out of memory is an outcome with its source and the bytes asked for."""
    oom, after = run(bench, [{"ask_mib": TOO_MUCH_MIB, "way": way}, {}])
    assert isinstance(oom.outcome, Oom), oom.outcome
    assert isinstance(after.outcome, Ok), after.outcome
    found(source=oom.outcome.source, asked=oom.outcome.bytes_asked)
    assert oom.outcome.bytes_asked == pytest.approx(TOO_MUCH_MIB * MIB, rel=0.01)
    assert (oom.outcome.source == "cuda_allocator") == (HARDWARE.device == "cuda")


@pytest.mark.gpus(2)
def test_one_rank_runs_out_while_the_others_wait(bench: Bench, found: Found) -> None:
    """One rank runs out of memory while its peers wait in NCCL; all have ended within 10 s."""
    oom, after = run(bench, [{"ask_mib": TOO_MUCH_MIB, "rank": 1}, {}], ranks=2)
    assert isinstance(oom.outcome, Oom), oom.outcome
    assert oom.outcome.rank == 1
    assert isinstance(after.outcome, Ok), after.outcome
    folder = bench.folder / "run/attempts" / oom.attempt.slug
    first, last = sorted(file.stat().st_mtime for file in folder.glob("rank?.json"))
    found(between_ranks_s=f"{last - first:.1f}", end_s=f"{account_of(oom).parts_s[END]:.1f}")
    assert last - first + account_of(oom).parts_s[END] < 10


def test_nothing_is_left_over(bench: Bench, found: Found) -> None:
    """After ok, out of memory and SIGKILL, the driver counts as much memory in use as before."""
    before = in_use()
    kinds = [result.outcome.kind for result in run(bench, [{}, {"ask_mib": TOO_MUCH_MIB}])]
    assert kinds == ["ok", "oom"]
    bench.assert_gone()
    after = in_use()
    matrix = bench.matrix(
        name="long",
        workload={"name": "hungry:Hungry", "sleep_s": 1},
        matrix={"backend": "single", "batch": 2},
        measure={**MEASURE, "steps": 500},
        launch={"num_processes": 1},
    )
    process = bench.start("run", matrix, "--out", str(bench.folder / "killed"), PYTHONPATH=PATHS)
    wait_for(lambda: list((bench.folder / "killed").glob("attempts/*/*/rank0.beat")))
    time.sleep(5)  # its memory is on the device by then
    during = in_use()
    process.send_signal(signal.SIGKILL)
    process.wait()
    bench.assert_gone()
    wait_for(lambda: in_use() <= before + LEFT, within_s=10)
    found(before_MiB=before // MIB, after_MiB=after // MIB, during_MiB=during // MIB, killed_MiB=in_use() // MIB)
    assert after <= before + LEFT


@pytest.mark.parametrize("expandable", [True, False])
def test_a_limit_holds(bench: Bench, found: Found, expandable: bool) -> None:
    """Under a memory limit, 5 % less fits and 5 % more does not."""
    limit_mib = 4096
    asks = [{"ask_mib": limit_mib * share // 100} for share in (95, 105)]
    environment = {"PYTORCH_CUDA_ALLOC_CONF": f"expandable_segments:{expandable}"}
    results = run(bench, asks, memory_limit=f"{limit_mib}MiB", environment=environment)
    assert [result.outcome.kind for result in results] == ["ok", "oom"]
    outcome = results[0].outcome
    assert isinstance(outcome, Ok)
    memory = outcome.ranks[0].memory
    found(limit_MiB=limit_mib, reserved_MiB=(memory.peak_reserved_bytes or 0) // MIB)


def test_what_the_driver_counts_is_explained(bench: Bench, found: Found) -> None:
    """Reserved memory, overhead and a context under 1.5 GiB explain what the driver counts."""
    note, before = bench.folder / "note", in_use()
    [result] = run(bench, [{"note": str(note), "width": 4096}])
    assert isinstance(result.outcome, Ok), result.outcome
    memory = result.outcome.ranks[0].memory
    if HARDWARE.device == "cuda":
        assert memory.peak_reserved_bytes is not None
        assert memory.overhead_bytes is not None
        explained = memory.peak_reserved_bytes + memory.overhead_bytes
        context = int(note.read_text()) - before - explained
        found(
            context_MiB=context // MIB,
            reserved_MiB=memory.peak_reserved_bytes // MIB,
            overhead_MiB=memory.overhead_bytes // MIB,
        )
        assert 0 < context < 1.5 * GIB


def test_a_search_agrees_with_doubling(bench: Bench, found: Found) -> None:
    """The certified largest batch lies where doubling the batch says."""
    cell: dict[str, Any] = {"workload": {"name": "toy:Toy", "held_mib": 16}, "measure": {**MEASURE, "phase_steps": 0}}
    limit = {"memory_limit": "4GiB", "num_processes": 1}
    matrix = bench.matrix(
        matrix={"backend": "single", "batch": [2**power for power in range(4, 9)]}, launch=limit, **cell
    )
    bench.start("run", matrix, "--out", str(bench.folder / "doubled")).communicate(timeout=600)
    kinds = {result.attempt.batch_per_rank: result.outcome.kind for result in bench.results("doubled")}
    fits, fails = (
        max(b for b, kind in kinds.items() if kind == "ok"),
        min(b for b, kind in kinds.items() if kind == "oom"),
    )
    matrix = bench.matrix(matrix={"backend": "single"}, launch=limit, **cell)
    bench("probe", matrix, "--out", str(bench.folder / "probed"))
    [probe] = Store(bench.folder / "probed").probes()
    assert isinstance(probe.found, Verdict)
    found(
        doubling=f"{fits} fits, {fails} does not",
        search=f"{probe.found.max_batch_per_rank} fits, {probe.found.fails} does not",
    )
    assert probe.found.certificate == "next_fails"
    assert probe.found.max_batch_per_rank is not None
    assert fits <= probe.found.max_batch_per_rank < fails


@pytest.mark.gpus(2)
def test_a_hang_is_named(bench: Bench, found: Found) -> None:
    """A rank that does nothing is named with its place, while the others wait in NCCL."""
    matrix = bench.matrix(
        workload={"name": "toy:Toy", "fault": "sleep", "fault_rank": 1},
        matrix={"backend": "ddp", "batch": 2},
        launch={"num_processes": 2, "hang_after_s": 20},
    )
    bench("run", matrix, "--out", str(bench.folder / "run"), expect=1)
    [result] = bench.results()
    reason = getattr(result.outcome, "reason", "")
    found(reason=reason)
    assert result.outcome.kind == "hang"
    assert re.search(r"rank 1 is in misbehave", reason)
    assert ANYWHERE in os.environ or "rank 0" in reason
