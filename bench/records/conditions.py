"""What else the machine did beside an attempt. null is unknown."""

from bench.records.base import Amount, Count, Frozen


class GpuConditions(Frozen):
    """One GPU. null is unknown."""

    busy_share_before: Amount | None
    """Of time, just before the attempt; null right after another attempt."""
    others_before: Count | None
    """Processes that held memory on it before the attempt had any."""
    others_bytes_before: Count | None
    """Memory in use then."""
    throttled: tuple[str, ...] | None
    """Why, at any look while steps ran; a power cap is one of them."""
    sm_clock_share_min: Amount | None
    """Lowest clock seen while steps ran, of the highest that it can have."""
    temperature_c_max: Count | None
    """While steps ran."""


class Conditions(Frozen):
    """Beside one attempt. null is unknown."""

    others_cpu_share_before: Amount | None
    """Of the time of the cores that bench may use, what other processes took since the attempt before; null when that
    was just now."""
    others_cpu_share: Amount | None
    """The same during the attempt."""
    available_bytes_min: Count | None
    """Memory of the host."""
    swap_used_bytes_before: Count | None
    swapped_bytes: Count | None
    """Moved to and from swap during the attempt, by anybody."""
    disk_free_bytes_min: Count | None
    """Where the run's folder lies."""
    disk_bytes: Count | None
    gpus: tuple[GpuConditions, ...] = ()
