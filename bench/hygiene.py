"""What the machine did beside an attempt: others on its GPUs and cores, throttling, swap, disk."""

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil

from bench import machine, processes
from bench.cell import Frozen

T = TypeVar("T")

EVERY_S = 1.0
"""How often an attempt under way is looked at."""
LEAST_WINDOW_S = 0.5
"""A share of time over less than this says nothing."""
GPU_WINDOW_S = 2.0
"""NVML's utilisation is of up to a second before; so long after an attempt of ours none of it is ours."""
THROTTLING: Mapping[int, str] = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "thermal slowdown by software",
    0x40: "thermal slowdown by hardware",
    0x80: "power brake",
}
"""Bits of NVML's clocks event reasons that slow a busy GPU down (nvml.h, nvmlClocksEventReasons)."""


class GpuConditions(Frozen):
    """One GPU. null is unknown."""

    busy_share_before: float | None
    """Of time, just before the attempt; null right after another attempt."""
    others_before: int | None
    """Processes that held memory on it before the attempt had any."""
    others_bytes_before: int | None
    """Memory in use then."""
    throttled: tuple[str, ...]
    """Why, at any look during the attempt."""
    sm_clock_share_min: float | None
    """Lowest clock seen, of the highest that it can have."""
    temperature_c_max: int | None


class Conditions(Frozen):
    """Beside one attempt. null is unknown."""

    others_cpu_share_before: float | None
    """Of all cores' time, what other processes took since the attempt before; null when that was just now."""
    others_cpu_share: float | None
    """The same during the attempt."""
    available_bytes_min: int
    """Memory of the host."""
    swap_used_bytes_before: int
    swapped_bytes: int
    """Moved to and from swap during the attempt, by anybody."""
    disk_free_bytes_min: int | None
    """Where the run's folder lies."""
    disk_bytes: int | None
    gpus: tuple[GpuConditions, ...] = ()


class Sampler:
    """Looks at the machine before, during and after each attempt of a run; raises nothing.

    Args:
        folder: the run's.
        environment: of which CUDA_VISIBLE_DEVICES says which GPUs count.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str] = os.environ) -> None:
        self._folder = folder
        self._gpus = [_Gpu(handle) for handle in _handles([gpu.uuid for gpu in machine.gpus(environment)])]
        self._cpu = _Cpu.read()
        self._before: float | None = None
        self._swap_before = psutil.swap_memory()
        self._next_s = 0.0
        self._ended_s: float | None = None
        self._reset()

    def _reset(self) -> None:
        self._available_bytes = psutil.virtual_memory().available
        self._disk_free_bytes, self._disk_bytes = _disk(self._folder)

    def begin(self) -> None:
        """An attempt is about to start."""
        now = _Cpu.read()
        self._before = now.others_share(self._cpu)
        self._cpu = now
        self._swap_before = psutil.swap_memory()
        self._reset()
        rested = self._ended_s is None or time.monotonic() - self._ended_s >= GPU_WINDOW_S
        for gpu in self._gpus:
            gpu.begin(rested=rested)

    def look(self) -> None:
        """The attempt is under way. Called often; looks once a second."""
        now = time.monotonic()
        if now < self._next_s:
            return
        self._next_s = now + EVERY_S
        self._available_bytes = min(self._available_bytes, psutil.virtual_memory().available)
        free, _ = _disk(self._folder)
        if free is not None and self._disk_free_bytes is not None:
            self._disk_free_bytes = min(self._disk_free_bytes, free)
        for gpu in self._gpus:
            gpu.look()

    def end(self) -> Conditions:
        """The attempt has ended."""
        now, swap = _Cpu.read(), psutil.swap_memory()
        during, self._cpu, self._ended_s = now.others_share(self._cpu), now, time.monotonic()
        return Conditions(
            others_cpu_share_before=self._before,
            others_cpu_share=during,
            available_bytes_min=self._available_bytes,
            swap_used_bytes_before=self._swap_before.used,
            swapped_bytes=max(0, swap.sin + swap.sout - self._swap_before.sin - self._swap_before.sout),
            disk_free_bytes_min=self._disk_free_bytes,
            disk_bytes=self._disk_bytes,
            gpus=tuple(gpu.conditions() for gpu in self._gpus),
        )


def busy_now(window_s: float = 0.3) -> float | None:
    """Share of all cores' time that other processes take, by a look of ``window_s``; None when it cannot be told."""
    before = _Cpu.read()
    time.sleep(window_s)
    return _Cpu.read().others_share(before, least_window_s=window_s / 2)


class _Cpu:
    """Time that all cores, and the processes of this run, have been busy so far."""

    def __init__(self, at_s: float, whole_s: float, busy_s: float, ours_s: float) -> None:
        self.at_s, self.whole_s, self.busy_s, self.ours_s = at_s, whole_s, busy_s, ours_s

    @classmethod
    def read(cls) -> "_Cpu":
        times = psutil.cpu_times()
        # Linux counts a guest's time in user's, too.
        whole_s = sum(getattr(times, name) for name in times._fields if not name.startswith("guest"))
        idle_s = times.idle + getattr(times, "iowait", 0.0)
        return cls(time.monotonic(), whole_s, whole_s - idle_s, _ours_s())

    def others_share(self, before: "_Cpu", least_window_s: float = LEAST_WINDOW_S) -> float | None:
        if self.at_s - before.at_s < least_window_s or self.whole_s <= before.whole_s:
            return None
        others_s = (self.busy_s - before.busy_s) - (self.ours_s - before.ours_s)
        return min(1.0, max(0.0, others_s / (self.whole_s - before.whole_s)))


def _ours_s() -> float:
    """Of this process and all below it, with those that have ended and were waited for."""
    total_s = 0.0
    for process in processes.tree(os.getpid()):
        with contextlib.suppress(psutil.Error):
            total_s += sum(process.cpu_times()[:4])
    return total_s


def _disk(folder: Path) -> tuple[int | None, int | None]:
    """Bytes free, and in all."""
    try:
        usage = psutil.disk_usage(str(folder))
    except OSError:
        return None, None
    return usage.free, usage.total


class _Gpu:
    """Reads one GPU through NVML; a figure that it does not have is None."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def begin(self, *, rested: bool) -> None:
        import pynvml

        busy = self._ask(pynvml.nvmlDeviceGetUtilizationRates)
        others = self._ask(pynvml.nvmlDeviceGetComputeRunningProcesses)
        used = self._ask(pynvml.nvmlDeviceGetMemoryInfo)
        self._busy_share = busy.gpu / 100 if busy is not None and rested else None
        self._others = None if others is None else len(others)
        # Before a rank has started nothing on the GPU is ours: servers do not touch it.
        self._others_bytes = None if used is None or not others else int(used.used)
        self._throttled: dict[str, None] = {}
        self._clock_share: float | None = None
        self._temperature_c: int | None = None

    def look(self) -> None:
        import pynvml

        reasons = self._ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons) or 0
        self._throttled |= {words: None for bit, words in THROTTLING.items() if int(reasons) & bit}
        clock = self._ask(lambda gpu: pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM))
        highest = self._ask(lambda gpu: pynvml.nvmlDeviceGetMaxClockInfo(gpu, pynvml.NVML_CLOCK_SM))
        if clock and highest:
            self._clock_share = min(clock / highest, self._clock_share or 1.0)
        warm = self._ask(lambda gpu: pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU))
        if warm is not None:
            self._temperature_c = max(int(warm), self._temperature_c or 0)

    def conditions(self) -> GpuConditions:
        return GpuConditions(
            busy_share_before=self._busy_share,
            others_before=self._others,
            others_bytes_before=self._others_bytes,
            throttled=tuple(self._throttled),
            sm_clock_share_min=self._clock_share,
            temperature_c_max=self._temperature_c,
        )

    def _ask(self, question: Callable[[Any], T]) -> T | None:
        import pynvml

        try:
            return question(self._handle)
        except pynvml.NVMLError:
            return None


def _handles(uuids: Sequence[str]) -> list[Any]:
    """NVML stays open: it ends with the process."""
    import pynvml

    try:
        if uuids:
            pynvml.nvmlInit()
        return [pynvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in uuids]
    except pynvml.NVMLError:
        return []
