"""One run of all backends, each in a world of one, which also leaves files for tests on other machines."""

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from checks import AVAILABLE, MIB, POLICY, first, needs_device, run
from harness import Bench, account_of, server_states

from bench.backends import BACKENDS
from bench.records.phases import PHASE_NAMES, Stage

NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
MOST_TRACE_BYTES = 4 * MIB
Found = Callable[..., None]


@pytest.mark.parametrize("backend", BACKENDS)
def test_it_trains(alone: Bench, found: Found, backend: str) -> None:
    """It trains in a forked child, in the regime that was asked for, within the memory of its device."""
    if backend not in AVAILABLE:
        pytest.skip("needs DeepSpeed: pip install deepspeed")
    [result] = [result for result in alone.results() if result.attempt.cell.backend == backend]
    rank = first(result)
    memory = rank.memory
    found(step_ms=f"{1e3 * median(rank.step_times_s):.1f}", loss=f"{rank.losses[-1]:.4f}", s=f"{result.wall_s:.0f}")
    assert result.isolation == "fork"
    if memory.peak_reserved_bytes is not None:
        assert memory.peak_allocated_bytes is not None
        assert 0 < memory.peak_allocated_bytes <= memory.peak_reserved_bytes < memory.capacity_bytes


def test_servers_do_not_compute(alone: Bench) -> None:
    """Rank servers stay able to fork: they never initialize CUDA."""
    assert [state["unforkable"] for state in server_states(alone.folder / "run")] == [None]


def test_what_ranks_saw_is_kept(alone: Bench, kept: Path, found: Found) -> None:
    """The flight recorder, a profiler's trace of a step and raw values of NVML lie beside the report."""
    dumps: dict[str, Any] = {}
    for backend in AVAILABLE:
        folder = alone.folder / backend
        trace = folder / "trace.json.gz"
        with gzip.open(trace, "rt") as opened:
            assert json.load(opened)["traceEvents"]
        if trace.stat().st_size < MOST_TRACE_BYTES:
            shutil.copy(trace, kept / f"trace-{backend}.json.gz")
        dumps[backend] = json.loads((folder / "flight_recorder.json").read_text())
    (kept / "flight_recorder.json").write_text(json.dumps(dumps, separators=(",", ":")))
    names = {str(entry["profiling_name"]) for dump in dumps.values() for entry in dump.get("entries", ())}
    files = sorted(kept.iterdir())
    found(collectives=", ".join(sorted(names)), files=len(files), MiB=sum(f.stat().st_size for f in files) // MIB)
    assert names


@needs_device("a sampled one")
def test_the_driver_told_while_they_ran(alone: Bench, kept: Path, found: Found) -> None:
    """While ranks compute, NVML's clock rises, its energy grows, and it names the processes on the device."""
    samples = [json.loads(line) for line in (kept / "nvml.jsonl").read_text().splitlines()]
    clocks = [sample["sm_clock_mhz"] for sample in samples]
    used_j = (samples[-1]["energy_mj"] - samples[0]["energy_mj"]) / 1e3
    named = sum(bool(sample["processes"]) for sample in samples)
    found(samples=len(samples), sm_clocks=f"{min(clocks)} to {max(clocks)} MHz", energy_J=f"{used_j:.0f}", named=named)
    assert used_j > 0
    assert max(clocks) > 0


@needs_device("whose losses to compare")
def test_first_losses_are_those_of_a_cpu(alone: Bench, bench: Bench, found: Found) -> None:
    """All backends, in a world of one, have the first loss that a CPU computes."""
    here = {result.attempt.cell.backend: first(result) for result in alone.results()}
    cells = [{"backend": name} for name in AVAILABLE]
    measure = {"warmup_steps": 1, "steps": 1, "phase_steps": 0}
    on_cpu = run(bench, cells, workload={**POLICY, "name": "recorded:Recorded"}, measure=measure, environment=NO_GPU)
    cpu = {result.attempt.cell.backend: first(result) for result in on_cpu}
    assert set(here) == set(cpu) == set(AVAILABLE)
    apart = {backend: abs(here[backend].warmup_losses[0] / cpu[backend].warmup_losses[0] - 1) for backend in here}
    found(largest_difference=f"{max(apart.values()):.2e}", first_loss=f"{here['single'].warmup_losses[0]:.4f}")
    assert max(apart.values()) < 0.01


def test_phases_sum_to_the_total(alone: Bench, found: Found) -> None:
    """The phases sum to the timed total within 2 %."""
    off: dict[str, float] = {}
    for result in alone.results():
        times_s = first(result).phase_times_s
        sums_s = [sum(parts) for parts in zip(*(times_s[phase] for phase in PHASE_NAMES), strict=True)]
        off[result.attempt.cell.backend] = median(a / b for a, b in zip(sums_s, times_s["total"], strict=True)) - 1
    found(largest=f"{max(map(abs, off.values())):.2%}")
    assert max(map(abs, off.values())) < 0.02


def test_events_agree_with_the_clock(alone: Bench, found: Found) -> None:
    """The device's events sum to at most the wall time of the measured steps, and the account to the whole."""
    shares = [sum(first(result).step_times_s) / account_of(result).parts_s[Stage.MEASURE] for result in alone.results()]
    host = {median(times) for result in alone.results() if (times := first(result).host_times_s)}
    found(least=f"{min(shares):.1%}", most=f"{max(shares):.1%}", host_ms=f"{1e3 * max(host, default=0):.1f} at most")
    assert 0.5 < min(shares) <= max(shares) <= 1.01


@needs_device("its kernels of attention")
def test_kernels_are_named(alone: Bench, found: Found) -> None:
    """The regime names the kernels that torch's attention chose."""
    kernels = {result.attempt.cell.backend: first(result).regime.attention_kernels for result in alone.results()}
    found(kernels=", ".join(kernels["single"] or ()))
    assert all(kernels.values())
    assert len(set(kernels.values())) == 1
