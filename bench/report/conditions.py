"""What disturbed an attempt: other processes, swapping, a throttled GPU; and a full disk. Sentences. Pure."""

from collections.abc import Iterable, Iterator

from bench.records.conditions import Conditions, GpuConditions
from bench.units import GIB, gib, percent

OTHERS_CPU = 0.1
"""Share of all cores. Two ranks on two cores lose about the same share of their time."""
GPU_BUSY = 0.05
LOW_DISK_BYTES, LOW_DISK_SHARE = GIB, 0.02
SWAPPED_BYTES = 16 * 2**20
"""A kernel swaps less than this in its routine work."""
CLOCKS_LOW = 0.8
OTHERS_GPU_BYTES = GIB
"""A driver or a desktop uses less. Inside a container, the processes that use the memory are invisible."""
EXPECTED = frozenset({"power cap"})
"""A busy large GPU reaches its power cap: this is recorded, and is no reason for doubt."""


def disturbances(conditions: Conditions) -> Iterator[str]:
    """Sentences; each ends with a full stop."""
    if (share := conditions.others_cpu_share) is not None and share > OTHERS_CPU:
        yield f"other processes took {percent(share)} of the CPU during the attempt."
    elif (share := conditions.others_cpu_share_before) is not None and share > OTHERS_CPU:
        yield f"other processes took {percent(share)} of the CPU just before."
    if conditions.swapped_bytes is not None and conditions.swapped_bytes > SWAPPED_BYTES:
        yield f"{gib(conditions.swapped_bytes)} GiB were swapped during the attempt."
    for index, gpu in enumerate(conditions.gpus):
        yield from (f"GPU {index} {disturbance}" for disturbance in _of_gpu(gpu))


def disturbances_of(launches: Iterable[Conditions | None]) -> list[str]:
    """Those of all launches, in their order."""
    return [words for conditions in launches if conditions for words in disturbances(conditions)]


def short_of_disk(conditions: Conditions) -> Iterator[str]:
    """A sentence where the disk was nearly full. It disturbs no step."""
    free, whole = conditions.disk_free_bytes_min, conditions.disk_bytes
    if free is not None and whole and (free < LOW_DISK_BYTES or free < LOW_DISK_SHARE * whole):
        yield f"the disk of the run's folder had {gib(free)} GiB left."


def _of_gpu(gpu: GpuConditions) -> Iterator[str]:
    if gpu.others_before:
        used = "" if gpu.others_bytes_before is None else f", {gib(gpu.others_bytes_before)} GiB in use"
        yield f"had {gpu.others_before} other process{'es' * (gpu.others_before > 1)} on it before{used}."
    elif gpu.others_bytes_before is not None and gpu.others_bytes_before > OTHERS_GPU_BYTES:
        yield f"had {gib(gpu.others_bytes_before)} GiB in use by other processes before."
    elif gpu.busy_share_before is not None and gpu.busy_share_before > GPU_BUSY:
        yield f"was {percent(gpu.busy_share_before)} busy before."
    if why := [reason for reason in gpu.throttled or () if reason not in EXPECTED]:
        warm = "" if gpu.temperature_c_max is None else f" at up to {gpu.temperature_c_max} °C"
        low = gpu.sm_clock_share_min
        clock = f", its clock down to {percent(low)}" if low is not None and low < CLOCKS_LOW else ""
        yield f"was throttled{warm}{clock}: {', '.join(why)}."
