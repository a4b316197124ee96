"""The conditions of an attempt: what else the machine did meanwhile. null is unknown."""

from bench.records.base import Amount, Count, Frozen


class GpuConditions(Frozen):
    """One GPU. null is unknown."""

    busy_share_before: Amount | None
    """Share of time that it was busy just before the attempt; null right after another attempt."""
    others_before: Count | None
    """Other processes with memory on it before the attempt started."""
    others_bytes_before: Count | None
    """Memory in use at that time."""
    throttled: tuple[str, ...] | None
    """Reasons for throttling, such as a power cap, seen in the throughput window."""
    sm_clock_share_min: Amount | None
    """Lowest clock of its multiprocessors seen in the throughput window, as a share of its maximum clock."""
    temperature_c_max: Count | None
    """Highest temperature in the throughput window."""
    sm_clock_hz_mean: Amount | None = None
    """Mean of that clock over the samples of the window, one a second."""


class Conditions(Frozen):
    """The conditions of one attempt. null is unknown."""

    others_cpu_share_before: Amount | None
    """Share of bench's cores that other processes used since the previous attempt; null when that attempt had only just
    ended."""
    others_cpu_share: Amount | None
    """The same during the attempt."""
    available_bytes_min: Count | None
    """Lowest available memory of the host."""
    swap_used_bytes_before: Count | None
    swapped_bytes: Count | None
    """Bytes moved to and from swap during the attempt, by any process."""
    disk_free_bytes_min: Count | None
    """Lowest free space on the disk of the run's folder."""
    disk_bytes: Count | None
    gpus: tuple[GpuConditions, ...] = ()
