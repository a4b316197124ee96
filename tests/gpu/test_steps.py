"""Steps that keep the device busy: their times against the clock, and the share of the peak rate that they reach."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import pytest
from checks import GIB, HARDWARE, POLICY, REHEARSED, SMALL, first, needs_device, run
from harness import ROOT, Bench, account_of

from bench import machine, workloads
from bench.launch import attempt_files
from bench.launch.environment import added_environment, launch_environment
from bench.records.cell import Attempt, Cell, Measure
from bench.records.devices import peak_rate
from bench.records.outcome import Result
from bench.records.phases import Stage
from bench.store import spool

LARGE = not REHEARSED and HARDWARE.memory_bytes >= 75 * GIB
"""Whether `pi05` fits, which takes 63 GiB. Then each step keeps an H200 busy for at least 200 ms."""
Found = Callable[..., None]


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Result]:
    """One attempt whose device is busy all the time."""
    bench = Bench(tmp_path_factory.mktemp("busy"))
    preset = "pi05" if LARGE else "tiny" if REHEARSED else "small"
    [result] = run(
        bench,
        [{"batch": 16}],
        workload={**POLICY, "preset": preset, "grad_ckpt": LARGE},
        train={"weights": "bf16"},
        measure={"warmup_steps": 3, "steps": 20, "phase_steps": 2},
    )
    yield result
    bench.assert_gone()


def test_steps_take_what_the_clock_says(busy: Result, found: Found) -> None:
    """The times of the steps of a busy device sum to the wall time of all of them, within 2 %."""
    rank, wall_s = first(busy), account_of(busy).parts_s[Stage.MEASURE]
    share = sum(rank.step_times_s) / wall_s
    found(
        workload=f"{busy.attempt.cell.options['preset']}, batch {busy.attempt.batch_per_rank}",
        steps_to_wall=f"{share:.2%}",
        step_ms=f"{1e3 * median(rank.step_times_s):.1f}",
        fastest_ms=f"{1e3 * min(rank.step_times_s):.1f}",
        slowest_ms=f"{1e3 * max(rank.step_times_s):.1f}",
        phases_total_ms=f"{1e3 * median(rank.phase_times_s['total']):.1f}",
        set_up_s=f"{rank.setup_s:.0f}",
    )
    assert (0.8 if REHEARSED else 0.98) < share <= 1.005


@needs_device("with a known peak rate")
def test_no_step_is_faster_than_the_peak_rate(busy: Result, found: Found) -> None:
    """Model FLOPs utilization lies between 5 % and 100 % of the device's peak rate."""
    rank, name = first(busy), machine.record(HARDWARE).accelerators[0]
    peak = peak_rate(name, busy.attempt.cell.mixed_precision)
    if peak is None or rank.work is None or rank.work.step_flops is None:
        pytest.skip(f"needs the peak rate of {name} in bench/records/devices.py")
    flops = (rank.work.step_flops - (rank.work.recomputed_flops or 0)) * busy.attempt.batch_per_rank
    shares = [flops / step_s / peak for step_s in rank.step_times_s]
    hardware = rank.work.step_flops * busy.attempt.batch_per_rank / median(rank.step_times_s) / peak
    found(mfu=f"{median(shares):.1%}", fastest_step=f"{max(shares):.1%}", hfu=f"{hardware:.1%}")
    assert max(shares) < 1
    assert hardware < 1
    assert not LARGE or median(shares) > 0.05


@needs_device("that works while the host queues")
def test_the_host_is_ahead(busy: Result, found: Found) -> None:
    """The host queues steps ahead of a busy device: conditions of the GPU were sampled, and no step waited for it."""
    rank, gpu = first(busy), busy.conditions.gpus[0] if busy.conditions and busy.conditions.gpus else None
    assert gpu is not None
    found(
        host_ms=f"{1e3 * median(rank.host_times_s or (0.0,)):.1f}",
        step_ms=f"{1e3 * median(rank.step_times_s):.1f}",
        **{name: value for name, value in gpu.model_dump().items() if value is not None},
    )
    assert gpu.temperature_c_max is not None


def test_a_step_costs_what_it_costs_without_bench(bench: Bench, found: Found) -> None:
    """By the same clock, a step takes as long as in a loop written by hand on accelerate, within 5 %."""
    kind, device = workloads.load("pi07"), HARDWARE.device
    cell = Cell(
        backend="single",
        workload="pi07",
        options=kind.Config(**(SMALL if REHEARSED else {})).model_dump(mode="json"),
        num_processes=1,
        mixed_precision="bf16",
        measure=Measure(warmup_steps=5, steps=3 if REHEARSED else 10, phase_steps=0),
    )
    added = added_environment(1, HARDWARE, os.environ)
    attempt = Attempt(cell=cell, batch_per_rank=8)
    for name, text in attempt_files.files(attempt, kind.units, device, added, str(bench.folder)).items():
        spool.write_text(bench.folder / name, text)
    bare = ROOT / "tests/perf/bare.py"
    command: list[Any] = [sys.executable, "-m", "accelerate.commands.launch", "--main_process_port", "0"]
    command += ["--config_file", bench.folder / "accelerate.yaml", bare, bench.folder]
    environment = launch_environment({**os.environ, "PYTHONPATH": str(ROOT)}, added)
    subprocess.run(command, env=environment, check=True, timeout=500)
    bench_s, bare_s = json.loads((bench.folder / "bare0.json").read_text())
    ratio = median(a / b for a, b in zip(bench_s, bare_s, strict=True))
    found(ratio=f"{ratio:.3f}", step_ms=f"{1e3 * median(bare_s):.1f}")
    assert ratio < (1.5 if REHEARSED else 1.05)
