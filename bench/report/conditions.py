"""What was wrong with the machine beside an attempt, as sentences."""

from collections.abc import Iterator, Sequence

from bench.records.conditions import Conditions, GpuConditions
from bench.report.tables.attempts import Table
from bench.units import GIB, UNKNOWN, gib, percent

OTHERS_CPU = 0.1
"""Share of all cores: two ranks on two cores lose about as much of their time."""
GPU_BUSY = 0.05
LOW_DISK_BYTES, LOW_DISK_SHARE = GIB, 0.02
SWAPPED_BYTES = 16 * 2**20
"""Less is what a kernel tidies up."""
CLOCKS_LOW = 0.8
OTHERS_GPU_BYTES = GIB
"""A driver or a desktop takes less. In a container the processes behind it cannot be seen."""
EXPECTED = frozenset({"power cap"})
"""A large GPU at work is at its power cap: recorded, and no reason for doubt."""


def doubts(conditions: Conditions) -> Iterator[str]:
    """Each ends in a full stop."""
    if (share := conditions.others_cpu_share) is not None and share > OTHERS_CPU:
        yield f"other processes took {percent(share)} of the CPU meanwhile."
    elif (share := conditions.others_cpu_share_before) is not None and share > OTHERS_CPU:
        yield f"other processes took {percent(share)} of the CPU just before."
    if conditions.swapped_bytes is not None and conditions.swapped_bytes > SWAPPED_BYTES:
        yield f"{gib(conditions.swapped_bytes)} GiB were moved to or from swap meanwhile."
    free, whole = conditions.disk_free_bytes_min, conditions.disk_bytes
    if free is not None and whole and (free < LOW_DISK_BYTES or free < LOW_DISK_SHARE * whole):
        yield f"the disk of the run's folder had {gib(free)} GiB left."
    for index, gpu in enumerate(conditions.gpus):
        yield from (f"GPU {index} {doubt}" for doubt in _of_gpu(gpu))


def _of_gpu(gpu: GpuConditions) -> Iterator[str]:
    if gpu.others_before:
        used = "" if gpu.others_bytes_before is None else f", {gib(gpu.others_bytes_before)} GiB in use"
        yield f"had {gpu.others_before} other process{'es' * (gpu.others_before > 1)} on it before{used}."
    elif gpu.others_bytes_before is not None and gpu.others_bytes_before > OTHERS_GPU_BYTES:
        yield f"had {gib(gpu.others_bytes_before)} GiB in use by others before."
    elif gpu.busy_share_before is not None and gpu.busy_share_before > GPU_BUSY:
        yield f"was {percent(gpu.busy_share_before)} busy before."
    if why := [reason for reason in gpu.throttled or () if reason not in EXPECTED]:
        warm = "" if gpu.temperature_c_max is None else f" at up to {gpu.temperature_c_max} °C"
        low = gpu.sm_clock_share_min
        clock = f", its clock down to {percent(low)}" if low is not None and low < CLOCKS_LOW else ""
        yield f"was throttled{warm}{clock}: {', '.join(why)}."


def gpus(seen: Sequence[tuple[str, Conditions]]) -> Table:
    """One line a GPU and attempt, which is named by its batch."""
    numbers = ("GPU", "busy before", "others before", "GiB before", "least clock", "most °C")
    return Table(
        title="The GPUs beside it",
        headers=("batch per rank", *numbers, "throttled"),
        rows=tuple(
            (
                batch,
                str(index),
                percent(gpu.busy_share_before),
                _count(gpu.others_before),
                gib(gpu.others_bytes_before),
                percent(gpu.sm_clock_share_min),
                _count(gpu.temperature_c_max),
                UNKNOWN if gpu.throttled is None else ", ".join(gpu.throttled) or "no",
            )
            for batch, conditions in seen
            for index, gpu in enumerate(conditions.gpus)
        ),
        numeric=frozenset({"batch per rank", *numbers}),
        notes=("others: processes. least clock: of the highest that the GPU can have, while steps ran.",),
    )


def _count(number: int | None) -> str:
    return UNKNOWN if number is None else str(number)
