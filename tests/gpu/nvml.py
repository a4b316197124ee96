"""Raw values of NVML while something runs, as lines of JSON: fixtures for tests on machines without a GPU."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pynvml
from checks import HARDWARE

from bench.store import spool

EVERY_S = 0.5
MOST_LINES = 400


def values(gpu: Any) -> dict[str, Any]:
    """What the driver says now of one GPU. A call that fails has its error."""
    reads: dict[str, Callable[[], Any]] = {
        "memory_v1": lambda: _fields(pynvml.nvmlDeviceGetMemoryInfo(gpu)),
        "memory_v2": lambda: _fields(pynvml.nvmlDeviceGetMemoryInfo(gpu, pynvml.nvmlMemory_v2)),
        "sm_clock_mhz": lambda: pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM),
        "sm_clock_max_mhz": lambda: pynvml.nvmlDeviceGetMaxClockInfo(gpu, pynvml.NVML_CLOCK_SM),
        "memory_clock_mhz": lambda: pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_MEM),
        "event_reasons": lambda: pynvml.nvmlDeviceGetCurrentClocksEventReasons(gpu),
        "power_mw": lambda: pynvml.nvmlDeviceGetPowerUsage(gpu),
        "power_limit_mw": lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(gpu),
        "energy_mj": lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu),
        "temperature_c": lambda: pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU),
        "utilization": lambda: _fields(pynvml.nvmlDeviceGetUtilizationRates(gpu)),
        "processes": lambda: [
            {"pid": process.pid, "used": process.usedGpuMemory}
            for process in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)
        ],
        "mig": lambda: pynvml.nvmlDeviceGetMigMode(gpu),
        "persistence": lambda: pynvml.nvmlDeviceGetPersistenceMode(gpu),
    }
    found: dict[str, Any] = {"at_s": time.time()}
    for name, read in reads.items():
        try:
            found[name] = read()
        except (pynvml.NVMLError, AttributeError) as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def _fields(structure: Any) -> dict[str, int]:
    return {name: int(getattr(structure, name)) for name, *_ in structure._fields_}


@contextmanager
def sampled(to: Path) -> Iterator[None]:
    """Sample the first GPU until the end; without one, nothing is written."""
    if HARDWARE.device != "cuda":
        yield
        return
    lines: list[dict[str, Any]] = []
    done = threading.Event()

    def look() -> None:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
            while not done.wait(EVERY_S) and len(lines) < MOST_LINES:
                lines.append(values(gpu))
                spool.write_text(to, "".join(json.dumps(line) + "\n" for line in lines))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def in_use() -> int:
    """Bytes of the first visible GPU, as the driver counts them; 0 without one."""
    if HARDWARE.device != "cuda":
        return 0
    pynvml.nvmlInit()
    try:
        gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        return int(pynvml.nvmlDeviceGetMemoryInfo(gpu, pynvml.nvmlMemory_v2).used)  # the first version counts reserved
    finally:
        pynvml.nvmlShutdown()
