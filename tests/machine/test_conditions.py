"""What the machine does beside an attempt: real processes for the CPU, a made-up driver and a real one for GPUs."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from examples import rendered, result
from fake_nvml import Driver

from bench import machine, processes
from bench.machine import conditions
from bench.machine.conditions import Sampler
from bench.records.conditions import Conditions, GpuConditions
from bench.records.outcome import Oom, Result
from bench.report.implausible import disturbances

SPIN = "import os, time; print(os.getpid(), flush=True); end = time.time() + 60\nwhile time.time() < end: pass"
GIB = 2**30
QUIET: dict[str, Any] = {
    "others_cpu_share_before": 0.0,
    "others_cpu_share": 0.01,
    "available_bytes_min": 8 * GIB,
    "swap_used_bytes_before": 0,
    "swapped_bytes": 0,
    "disk_free_bytes_min": 64 * GIB,
    "disk_bytes": 128 * GIB,
}
COOL: dict[str, Any] = {
    "busy_share_before": 0.0,
    "others_before": 0,
    "others_bytes_before": None,
    "throttled": (),
    "sm_clock_share_min": 0.98,
    "temperature_c_max": 60,
}


@pytest.fixture
def stranger() -> Iterator[None]:
    """A process that computes and is none of ours: whoever started it has gone."""
    shell = subprocess.Popen(["sh", "-c", '"$0" -c "$1" &', sys.executable, SPIN], stdout=subprocess.PIPE, text=True)
    pid = shell.stdout.readline().strip()
    shell.wait()
    yield
    subprocess.run(["kill", "-9", pid], check=True)


def test_a_stranger_on_the_cpu_is_seen_and_our_own_work_is_not(tmp_path: Path, stranger: None) -> None:
    sampler = Sampler(tmp_path)
    sampler.begin()
    ours = subprocess.Popen([sys.executable, "-c", SPIN], stdout=subprocess.DEVNULL)
    time.sleep(1.5)
    sampler.look("measure")
    ours.kill()
    ours.wait()
    seen = sampler.end()
    cores = psutil.cpu_count() or 1
    # A share of all cores; the two of them may have to share one.
    assert seen.others_cpu_share > 0.3 / cores
    assert seen.available_bytes_min
    assert seen.disk_bytes
    assert sampler.now().others_cpu_share_before is not None


@pytest.mark.parametrize(("online", "busy_s"), [({0, 2, 3}, 30), ({0, 1, 2, 3}, None)])
def test_cores_that_are_switched_off_are_not_counted_as_others(
    online: set[int], busy_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = [SimpleNamespace(user=user, nice=0, system=0, _fields=("user",)) for user in (10, 20, 30)]
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: listed)
    monkeypatch.setattr(conditions.numa, "online", lambda: frozenset(online))
    monkeypatch.setattr(conditions.os, "sched_getaffinity", lambda _: {3})
    times_s = conditions._or_none(conditions._core_times)
    assert times_s == (busy_s and (busy_s, busy_s))


def test_the_time_of_ours_that_were_killed_is_not_taken_back(tmp_path: Path) -> None:
    """A launch that is ended takes its ranks' times along: nobody is left to wait for them."""
    rank = "import time\nwhile True: pass"
    command = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]]).wait()"
    launcher = subprocess.Popen([sys.executable, "-c", command, rank])
    tree = processes.tree(launcher.pid)
    while sum(process.cpu_times().user for process in tree) < 1:
        time.sleep(0.05)
        tree = processes.tree(launcher.pid)
    seen = conditions._Cpu()
    processes.kill(tree)
    launcher.wait()
    seen.look()
    assert seen._ours_s >= 0
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass
    seen.look()
    assert seen._ours_s > 0.25


def test_a_look_that_fails_costs_its_figure_and_no_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError("planted")

    sampler = Sampler(tmp_path)
    for name in ("virtual_memory", "swap_memory", "disk_usage", "cpu_times"):
        monkeypatch.setattr(psutil, name, fails)
    sampler.begin()
    sampler.look("measure")
    assert set(sampler.end().model_dump().values()) == {None, ()}


def test_too_short_a_look_says_nothing(tmp_path: Path) -> None:
    sampler = Sampler(tmp_path)
    sampler.begin()
    seen = sampler.end()
    assert seen.others_cpu_share_before is None
    assert seen.others_cpu_share is None


def test_gpus_are_looked_at_and_what_one_does_not_tell_is_unknown(tmp_path: Path, driver: Driver) -> None:
    def reports(**shared: int) -> None:
        told = {"mib": 81920, "used": 7168, "busy": 35, "others": 1, "reasons": 0, "clock": 1980, "temperature": 50}
        first = " ".join(f"{name}={value}" for name, value in {**told, **shared}.items())
        driver.reports(f"uuid=GPU-a {first}", "uuid=GPU-b mib=81920 used=7168")

    reports()
    sampler = Sampler(tmp_path, {})
    sampler.begin()
    reports(clock=345, reasons=0x04, temperature=99)
    for stage in ("setup", "warmup", "phases"):  # idle, or about to be: its clock says nothing
        sampler._next_s = 0
        sampler.look(stage)
    reports()
    sampler.look("measure")
    reports(clock=990, reasons=0x48, temperature=91)
    sampler._next_s = 0
    sampler.look("measure")
    shared, silent = sampler.end().gpus
    assert shared == GpuConditions(
        busy_share_before=0.35,
        others_before=1,
        others_bytes_before=7 * GIB,
        throttled=("hardware slowdown", "thermal slowdown by hardware"),
        sm_clock_share_min=0.5,
        temperature_c_max=91,
        sm_clock_hz_mean=1485e6,
    )
    assert silent == GpuConditions(
        busy_share_before=None,
        others_before=None,
        others_bytes_before=7 * GIB,
        throttled=None,
        sm_clock_share_min=None,
        temperature_c_max=None,
    )
    sampler.begin()
    assert sampler.end().gpus[0].busy_share_before is None  # it may have been our own attempt


def test_the_server_of_mps_is_no_other_and_what_another_pid_namespace_holds_is_seen(
    tmp_path: Path, driver: Driver
) -> None:
    driver.reports(
        "uuid=GPU-a mib=81920 used=512 reserved=600 others=2 mps=1", "uuid=GPU-b mib=81920 used=7168 others=0"
    )
    beside = Sampler(tmp_path, {}).end()
    assert [(gpu.others_before, gpu.others_bytes_before) for gpu in beside.gpus] == [(1, GIB // 2), (0, 7 * GIB)]
    driver.reports(
        "uuid=GPU-a mib=81920 used=512 reserved=600 others=1 mps=1", "uuid=GPU-b mib=81920 used=7168 others=0"
    )
    assert list(disturbances(Sampler(tmp_path, {}).end())) == ["GPU 1 had 7.00 GiB in use by other processes before."]


@pytest.mark.gpu
@pytest.mark.skipif(machine.detect().device != "cuda", reason="needs a CUDA device and its driver")
def test_a_real_gpu_is_looked_at(tmp_path: Path) -> None:
    sampler = Sampler(tmp_path)
    sampler.begin()
    sampler.look("measure")
    found = sampler.end().gpus
    assert len(found) == machine.detect().devices
    for gpu in found:
        assert gpu.throttled is not None
        assert gpu.temperature_c_max is not None
        assert gpu.sm_clock_share_min is not None
        assert gpu.sm_clock_hz_mean


DOUBTS: dict[str, tuple[dict[str, Any], str]] = {
    "another process": ({"others_cpu_share": 0.4}, "other processes took 40.0 % of the CPU during the attempt."),
    "one just before": ({"others_cpu_share_before": 0.4}, "other processes took 40.0 % of the CPU just before."),
    "swap": ({"swapped_bytes": GIB}, "1.00 GiB were swapped during the attempt."),
    "disk": ({"disk_free_bytes_min": GIB // 2}, "the disk of the run's folder had 0.500 GiB left."),
    "tenant": (
        {"gpus": (GpuConditions(**{**COOL, "others_before": 2, "others_bytes_before": 7 * GIB}),)},
        "GPU 0 had 2 other processes on it before, 7.00 GiB in use.",
    ),
    "a tenant that cannot be seen": (
        {"gpus": (GpuConditions(**{**COOL, "others_before": 0, "others_bytes_before": 7 * GIB}),)},
        "GPU 0 had 7.00 GiB in use by other processes before.",
    ),
    "busy": ({"gpus": (GpuConditions(**{**COOL, "busy_share_before": 0.5}),)}, "GPU 0 was 50.0 % busy before."),
    "throttled": (
        {"gpus": (GpuConditions(**{**COOL, "throttled": ("power brake",), "sm_clock_share_min": 0.5}),)},
        "GPU 0 was throttled at up to 60 °C, its clock down to 50.0 %: power brake.",
    ),
}


def test_a_power_cap_is_recorded_and_not_doubted() -> None:
    capped = GpuConditions(**{**COOL, "throttled": ("power cap",)})
    assert list(disturbances(Conditions(**QUIET, gpus=(capped,)))) == []


def test_who_shares_a_gpu_is_named_beside_an_attempt_that_ran_out_of_memory() -> None:
    shared = GpuConditions(**{**COOL, "others_before": 1, "others_bytes_before": 7 * GIB})
    conditions = Conditions(**QUIET, gpus=(shared,))
    oom = result(Oom(rank=0, phase="setup", reason="CUDA out of memory")).model_copy(update={"conditions": conditions})
    assert "GPU 0 had 1 other process on it before" in rendered([oom])


@pytest.mark.parametrize("name", DOUBTS)
def test_a_disturbed_result_is_doubted_in_the_report_and_a_quiet_one_is_not(name: str) -> None:
    changes, says = DOUBTS[name]
    disturbed = result().model_copy(update={"conditions": Conditions(**{**QUIET, **changes})})
    assert says in rendered([disturbed])
    quiet = result().model_copy(update={"conditions": Conditions(**QUIET, gpus=(GpuConditions(**COOL),))})
    assert says not in rendered([quiet])
    assert Result.model_validate_json(disturbed.model_dump_json()) == disturbed
