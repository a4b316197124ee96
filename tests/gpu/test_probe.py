"""A search up to the true ceiling of the device, without a limit."""

from collections.abc import Callable
from typing import Any

from checks import MIB, POLICY, REHEARSED, first
from harness import Bench
from nvml import in_use

from bench.records.outcome import Oom
from bench.records.verdict import Verdict
from bench.store.run_folder import Store

LEFT = 64 * MIB
Found = Callable[..., None]


def test_the_ceiling_of_the_device(bench: Bench, found: Found) -> None:
    """The largest batch of `single` at `small`, without a limit, comes near the capacity, and the next one fails."""
    before = in_use()
    # A rank of a CPU could take all memory of the host.
    content: dict[str, Any] = {"launch": {"num_processes": 1, **({"memory_limit": "256MiB"} if REHEARSED else {})}}
    content |= {"workload": {**POLICY, "preset": "tiny" if REHEARSED else "small"}}
    matrix = bench.matrix(
        matrix={"backend": "single"}, measure={"warmup_steps": 1, "steps": 3, "phase_steps": 0}, **content
    )
    bench("probe", matrix, "--out", str(bench.folder / "probed"))
    [probe] = Store(bench.folder / "probed").probes()
    assert isinstance(probe.found, Verdict)
    results = {result.attempt.batch_per_rank: result for result in bench.results("probed")}
    largest = probe.found.max_batch_per_rank
    assert largest is not None
    memory = first(results[largest]).memory
    share = (memory.held_bytes or 0) / memory.capacity_bytes
    refused = [result.outcome for result in results.values() if isinstance(result.outcome, Oom)]
    found(
        max=largest,
        fails=probe.found.fails,
        certificate=probe.found.certificate,
        held=f"{share:.1%} of {memory.capacity_bytes // MIB} MiB",
        attempts=len(results),
        refused_by=", ".join(sorted({str(outcome.source) for outcome in refused})),
        retries=memory.alloc_retries,
        before_MiB=before // MIB,
        after_MiB=in_use() // MIB,
    )
    assert probe.found.fails is not None
    assert refused, "no attempt reached the ceiling"
    assert REHEARSED or share > 0.9
    assert in_use() <= before + LEFT
