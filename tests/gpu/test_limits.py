"""Memory limits and what the driver counts."""

from collections.abc import Callable
from typing import Any

import pytest
from checks import GIB, MIB, REHEARSED, first, needs_device, run
from harness import Bench
from nvml import in_use

from bench.records.verdict import Verdict
from bench.store.run_folder import Store

MEASURE = {"warmup_steps": 1, "steps": 3, "phase_steps": 1}
HUNGRY: dict[str, Any] = {"workload": {"name": "hungry:Hungry"}, "measure": MEASURE}
Found = Callable[..., None]


@pytest.mark.parametrize("expandable", [True, False])
def test_a_limit_holds(bench: Bench, found: Found, expandable: bool) -> None:
    """Under a memory limit, 5 % less fits and 5 % more does not."""
    limit_mib = 4096
    asks = [{"ask_mib": limit_mib * share // 100} for share in (95, 105)]
    environment = {"PYTORCH_CUDA_ALLOC_CONF": f"expandable_segments:{expandable}"}
    results = run(bench, asks, launch={"memory_limit": f"{limit_mib}MiB"}, environment=environment, **HUNGRY)
    assert [result.outcome.kind for result in results] == ["ok", "oom"]
    memory = first(results[0]).memory
    found(limit_MiB=limit_mib, reserved_MiB=(memory.peak_reserved_bytes or 0) // MIB)


@needs_device("whose driver counts")
def test_what_the_driver_counts_is_explained(bench: Bench, found: Found) -> None:
    """Reserved memory, overhead and a context under 1.5 GiB explain what the driver counts."""
    note, before = bench.folder / "note", in_use()
    [result] = run(bench, [{"note": str(note), "width": 4096}], **HUNGRY)
    memory = first(result).memory
    assert memory.peak_reserved_bytes is not None
    assert memory.overhead_bytes is not None
    context = int(note.read_text()) - before - memory.peak_reserved_bytes - memory.overhead_bytes
    found(
        context_MiB=context // MIB,
        reserved_MiB=memory.peak_reserved_bytes // MIB,
        overhead_MiB=memory.overhead_bytes // MIB,
    )
    assert 0 < context < 1.5 * GIB


def test_a_search_agrees_with_doubling(bench: Bench, found: Found) -> None:
    """The certified largest batch lies where doubling the batch says."""
    toy = {"name": "toy:Toy", "held_mib": 1 if REHEARSED else 16}
    cell: dict[str, Any] = {"workload": toy, "measure": {**MEASURE, "phase_steps": 0}}
    limit = {"memory_limit": "256MiB" if REHEARSED else "4GiB", "num_processes": 1}
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
