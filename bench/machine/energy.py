"""The energy that a rank's device takes, by the counters of the GPU (NVML) or of the processors (RAPL)."""

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pynvml

from bench.machine import gpus

MOST_W, MOST_DRAM_W = 1000.0, 300.0
"""No package of processors takes more, and no memory of one. In a window in which one could have taken a whole range of
its counter, it may have wrapped more than once."""


class Counter(NamedTuple):
    """What a counter shows; after ``range_j``, it starts again at 0."""

    joules: float
    range_j: float = math.inf
    most_w: float = MOST_W


Counters = Mapping[str, Counter]
"""By name; empty if there are none, or if one cannot be read."""


class Meter:
    """Measures what is taken between two moments: ``share`` of what is counted, where ranks share that."""

    def __init__(self, read: Callable[[], Counters] = dict, share: float = 1.0) -> None:
        self._read, self._share = read, share

    def start(self) -> None:
        self._since, self._since_s = self._read(), time.monotonic()

    def stop(self) -> float | None:
        """Joules since the start; None where they are unknown."""
        now, lasted_s = self._read(), time.monotonic() - self._since_s
        if not now or now.keys() != self._since.keys():
            return None
        joules = 0.0
        for name, counter in now.items():
            taken = counter.joules - self._since[name].joules
            if lasted_s * counter.most_w >= counter.range_j or (taken < 0 and math.isinf(counter.range_j)):
                return None
            joules += taken if taken >= 0 else taken + counter.range_j
        return joules * self._share


def of_gpu(environment: Mapping[str, str], number: int) -> Meter:
    """Of the GPU that CUDA shows as this number. The driver updates its counter some ten times a second. A slice has
    none of its own."""
    shown = gpus.visible(environment)
    if number >= len(shown):
        return Meter()
    uuid = shown[number].uuid

    def read() -> Counters:
        millijoules = gpus.ask(uuid, lambda handle: int(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)))
        return {} if millijoules is None else {uuid: Counter(millijoules / 1e3)}

    return Meter(read)


def of_processors(ranks: int, root: Path = Path("/")) -> Meter:
    """Of all processors of this machine with their memory, divided by its ranks: the counters know no process."""
    return Meter(lambda: _rapl(root), share=1 / ranks)


def _rapl(root: Path) -> Counters:
    # A package contains its cores, and `psys` contains packages; the same package under `intel-rapl-mmio` is a copy.
    counters = {}
    for zone in sorted((root / "sys/class/powercap").glob("intel-rapl:*")):
        try:
            if (name := (zone / "name").read_text()).startswith(("package", "dram")):
                range_j = int((zone / "max_energy_range_uj").read_text()) / 1e6
                most_w = MOST_DRAM_W if name.startswith("dram") else MOST_W
                counters[zone.name] = Counter(int((zone / "energy_uj").read_text()) / 1e6, range_j, most_w)
        except (OSError, ValueError):  # often only root may read it
            return {}
    return counters
