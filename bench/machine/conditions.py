"""Samples the conditions of an attempt: other processes on its GPUs and cores, throttling, swap, disk."""

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import psutil
import pynvml

from bench.machine import gpus, numa
from bench.records.conditions import Conditions, GpuConditions
from bench.records.phases import Stage
from bench.records.slurm import JOB

T = TypeVar("T")

EVERY_S = 1.0
"""Interval of the samples during an attempt."""
LEAST_WINDOW_S = 0.5
"""A share of time over a shorter window is meaningless."""
MPS_SERVER = "nvidia-cuda-mps-server"
"""NVIDIA's own process, which stays on a GPU that several processes share. It computes nothing of its own."""
GPU_WINDOW_S = 2.0
"""NVML's utilization covers up to the last second. This long after an attempt, it contains nothing of that attempt."""
THROTTLING: Mapping[int, str] = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "thermal slowdown by software",
    0x40: "thermal slowdown by hardware",
    0x80: "power brake",
}
"""The bits of NVML's clock event reasons that slow down a busy GPU (nvml.h, nvmlClocksEventReasons)."""


class Sampler:
    """Samples the machine before, during and after each attempt of a run. It never raises an exception.

    Args:
        folder: the run's folder, whose disk is checked.
        environment: CUDA_VISIBLE_DEVICES in it decides which GPUs are sampled.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str] = os.environ) -> None:
        self._folder = folder
        self._gpus = [_Gpu(handle) for handle in _handles(environment)]
        self._cpu = _Cpu()
        self._ended_s: float | None = None
        self.begin()

    def begin(self) -> None:
        """Call when an attempt is about to start."""
        self._before, self._cpu = self._cpu.others_share(), _Cpu()
        self._swap_before = _or_none(psutil.swap_memory)
        self._available_bytes: list[int] = []
        self._disk_free_bytes: list[int] = []
        self._disk_bytes: int | None = None
        self._next_s, self._phase = 0.0, ""
        rested = self._ended_s is None or time.monotonic() - self._ended_s >= GPU_WINDOW_S
        for gpu in self._gpus:
            gpu.begin(rested=rested)
        self._look_at_host()

    def look(self, phase: str) -> None:
        """Call often during the attempt. Samples once a second, and immediately when a new phase begins."""
        now = time.monotonic()
        if now < self._next_s and phase == self._phase:
            return
        self._next_s, self._phase = now + EVERY_S, phase
        self._look_at_host()
        self._cpu.look()
        if phase == Stage.MEASURE:  # earlier a GPU may be idle, and then lowers its clock by itself
            for gpu in self._gpus:
                gpu.look()

    def end(self) -> Conditions:
        """Call when the attempt has ended."""
        self._look_at_host()
        during, self._cpu, self._ended_s = self._cpu.others_share(), _Cpu(), time.monotonic()
        return self._conditions(during)

    def _look_at_host(self) -> None:
        if (memory := _or_none(psutil.virtual_memory)) is not None:
            self._available_bytes.append(memory.available)
        if (disk := _or_none(lambda: psutil.disk_usage(str(self._folder)))) is not None:
            self._disk_free_bytes.append(disk.free)
            self._disk_bytes = disk.total

    def now(self, window_s: float = LEAST_WINDOW_S) -> Conditions:
        """The conditions before any attempt, sampled over ``window_s``."""
        self._cpu = _Cpu()
        time.sleep(window_s)
        self.begin()
        return self._conditions(None)

    def _conditions(self, others_cpu_share: float | None) -> Conditions:
        was, swap = self._swap_before, _or_none(psutil.swap_memory)
        moved = None if was is None or swap is None else max(0, swap.sin + swap.sout - was.sin - was.sout)
        return Conditions(
            others_cpu_share_before=self._before,
            others_cpu_share=others_cpu_share,
            available_bytes_min=min(self._available_bytes, default=None),
            swap_used_bytes_before=None if was is None else was.used,
            swapped_bytes=moved,
            disk_free_bytes_min=min(self._disk_free_bytes, default=None),
            disk_bytes=self._disk_bytes,
            gpus=tuple(gpu.conditions() for gpu in self._gpus),
        )


def _or_none(read: Callable[[], T]) -> T | None:
    """The result of ``read``, or None: a failed sample must not cost an attempt."""
    try:
        return read()
    except Exception:
        return None


class _Cpu:
    """The share of this process's cores that other processes use, since this object was created."""

    def __init__(self) -> None:
        self._began_s, self._times = time.monotonic(), _or_none(_core_times)
        self._tree_s, self._ours_s = _tree_s(), 0.0

    def look(self) -> None:
        """Call regularly: the time of a process is lost when it ends and no parent waits for it."""
        tree_s = _tree_s()
        self._ours_s += max(0.0, tree_s - self._tree_s)
        self._tree_s = tree_s

    def others_share(self) -> float | None:
        self.look()
        was, now = self._times, _or_none(_core_times)
        if was is None or now is None or time.monotonic() - self._began_s < LEAST_WINDOW_S or now[1] <= was[1]:
            return None
        return min(1.0, max(0.0, (now[0] - was[0] - self._ours_s) / (now[1] - was[1])))


def _core_times() -> tuple[float, float]:
    """Busy seconds and total seconds of the cores that this process may use."""
    cores = psutil.cpu_times(percpu=True)
    if hasattr(os, "sched_getaffinity"):
        by_number = dict(zip(sorted(numa.online()), cores, strict=True))  # psutil lists those that are online
        cores = [by_number[core] for core in os.sched_getaffinity(0)]
    # Interrupts belong to no process. Linux counts guest time in user time, too.
    busy_s = sum(core.user + core.nice + core.system + getattr(core, "steal", 0.0) for core in cores)
    whole_s = sum(getattr(core, name) for core in cores for name in core._fields if not name.startswith("guest"))
    return busy_s, whole_s


def _tree_s() -> float:
    """CPU seconds of this process and its descendants, including those that have ended and were waited for. In a job,
    also of its tasks, which are nobody's descendants."""
    this = psutil.Process()
    ours = {this, *(_or_none(lambda: this.children(recursive=True)) or ())}
    if job := os.environ.get(JOB):
        ours.update(_or_none(lambda: _with_variable(JOB, job)) or ())
    total_s = 0.0
    for process in ours:
        with contextlib.suppress(psutil.Error):
            total_s += sum(process.cpu_times()[:4])
    return total_s


def _with_variable(name: str, value: str) -> list[psutil.Process]:
    """The processes that were started with this variable, as far as this one may see their environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(name) == value:
                found.append(process)
    return found


class _Gpu:
    """Samples one GPU through NVML. A figure that the GPU does not provide is None."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def begin(self, *, rested: bool) -> None:
        # Before a rank has started, nothing on the GPU is ours: rank servers do not use it.
        self._busy_share = (
            self._ask(lambda gpu: pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100) if rested else None
        )
        running = self._ask(pynvml.nvmlDeviceGetComputeRunningProcesses)
        self._others = None if running is None else sum(not _is_mps_server(process.pid) for process in running)
        self._others_bytes = self._ask(gpus.used_bytes)
        self._throttled: dict[str, None] | None = None
        self._clocks_hz: list[float] = []
        self._clock_shares: list[float] = []
        self._temperatures_c: list[int] = []

    def look(self) -> None:
        reasons = self._ask(lambda gpu: int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)))
        if reasons is not None:
            seen = {words: None for bit, words in THROTTLING.items() if reasons & bit}
            self._throttled = (self._throttled or {}) | seen
        clock = self._ask(lambda gpu: int(pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM)))
        self._clocks_hz += [] if clock is None else [clock * 1e6]
        highest = self._ask(lambda gpu: int(pynvml.nvmlDeviceGetMaxClockInfo(gpu, pynvml.NVML_CLOCK_SM)))
        if clock is not None and highest:
            self._clock_shares.append(min(clock / highest, 1.0))
        warm = self._ask(lambda gpu: int(pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU)))
        if warm is not None:
            self._temperatures_c.append(warm)

    def conditions(self) -> GpuConditions:
        return GpuConditions(
            busy_share_before=self._busy_share,
            others_before=self._others,
            others_bytes_before=self._others_bytes,
            throttled=None if self._throttled is None else tuple(self._throttled),
            sm_clock_share_min=min(self._clock_shares, default=None),
            sm_clock_hz_mean=fmean(self._clocks_hz) if self._clocks_hz else None,
            temperature_c_max=max(self._temperatures_c, default=None),
        )

    def _ask(self, question: Callable[[Any], T]) -> T | None:
        return _or_none(lambda: question(self._handle))


def _is_mps_server(pid: int) -> bool:
    name = _or_none(lambda: str(pynvml.nvmlSystemGetProcessName(pid)))
    return name is not None and Path(name).name == MPS_SERVER


def _handles(environment: Mapping[str, str]) -> list[Any]:
    """NVML handles of the visible GPUs. NVML stays open until the process ends."""

    def opened() -> list[Any]:
        uuids = [gpu.uuid for gpu in gpus.visible(environment)]
        if uuids:
            pynvml.nvmlInit()
        return [pynvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in uuids]

    return _or_none(opened) or []
