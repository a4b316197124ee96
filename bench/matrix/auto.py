"""Resolves `auto` on this machine: ranks, memory and preset. Pure."""

from pydantic import JsonValue

from bench.errors import InputError, near_miss
from bench.matrix.combinations import Value
from bench.matrix.matrix_file import Launch, Matrix, Values
from bench.matrix.yaml_file import dotted, place_of, show
from bench.records.machine import Hardware
from bench.workloads import Definition


def num_processes(launch: Launch, hardware: Hardware) -> int:
    """Ranks of every backend but ``single``."""
    if launch.num_processes == "auto":
        return hardware.devices if hardware.device == "cuda" else 2
    return launch.num_processes


def memory_per_rank(launch: Launch, hardware: Hardware) -> int:
    """Bytes for ``preset: auto``: one GPU's memory, or a rank's share of the host's."""
    if hardware.device == "cuda":
        return hardware.memory_bytes
    return hardware.memory_bytes // num_processes(launch, hardware)


def resolve_preset(
    matrix: Matrix, workload: Definition, requested: Value, hardware: Hardware
) -> tuple[JsonValue, Values]:
    """The name of the preset, with ``auto`` resolved, and its fields."""
    preset = requested.value
    if preset == "auto":
        if workload.auto_preset is None or not workload.presets:
            return preset, {}
        preset = workload.auto_preset(hardware.device, memory_per_rank(matrix.launch, hardware))
    if not isinstance(preset, str) or preset not in workload.presets:
        raise InputError(
            f"{show(preset)} is not a preset of {matrix.workload.name}",
            where=place_of(matrix.places, requested.key),
            field=dotted(requested.key),
            allowed=["auto", *workload.presets],
            fix=near_miss(preset, ["auto", *workload.presets]),
        )
    return preset, dict(workload.presets[preset])


def memory_limit(matrix: Matrix, workload: Definition, preset: str, searches: bool, hardware: Hardware) -> int | None:
    """Bytes per rank. A search on a CPU needs a limit, because it would otherwise exhaust the host's memory.

    Args:
        searches: whether any cell of the matrix is searched; the limit then applies to all its cells.
    """
    limit = matrix.launch.memory_limit
    if limit != "auto":
        return int(limit)
    if not searches or hardware.device == "cuda":
        return None
    return workload.cpu_memory_limits.get(preset, memory_per_rank(matrix.launch, hardware) * 3 // 4)
