"""What `auto` comes to: ranks, memory and preset on this machine. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from pydantic import JsonValue

from bench.errors import InputError, near_miss
from bench.matrix.file import Launch, Matrix, Values
from bench.matrix.yaml_file import Key, canonical, dotted, place_of, show
from bench.records.machine import Hardware
from bench.workload import Workload


@dataclass(frozen=True)
class Value:
    """One value of a combination and the key that it was written at."""

    value: JsonValue
    key: Key

    @cached_property
    def text(self) -> str:
        """The same for values that are the same."""
        return canonical(self.value)


def num_processes(launch: Launch, hardware: Hardware) -> int:
    """Ranks of every backend but ``single``."""
    if launch.num_processes == "auto":
        return hardware.devices if hardware.device == "cuda" else 2
    return launch.num_processes


def memory_per_rank(launch: Launch, hardware: Hardware) -> int:
    """Bytes that ``preset: auto`` may count on: a GPU, or this rank's part of the host."""
    if hardware.device == "cuda":
        return hardware.memory_bytes
    return hardware.memory_bytes // num_processes(launch, hardware)


def resolve_preset(
    matrix: Matrix, workload: type[Workload], asked: Value, hardware: Hardware
) -> tuple[JsonValue, Values]:
    """The preset's name with ``auto`` resolved, and its fields."""
    preset = asked.value
    if preset == "auto" and not workload.presets:
        return preset, {}
    if preset == "auto":
        preset = workload.auto_preset(hardware.device, memory_per_rank(matrix.launch, hardware))
    if not isinstance(preset, str) or preset not in workload.presets:
        raise InputError(
            f"{show(preset)} is not a preset of {matrix.workload.name}",
            where=place_of(matrix.places, asked.key),
            field=dotted(asked.key),
            allowed=["auto", *workload.presets],
            fix=near_miss(preset, ["auto", *workload.presets]),
        )
    return preset, dict(workload.presets[preset])


def memory_limit(
    matrix: Matrix, workload: type[Workload], preset: str, searches: bool, hardware: Hardware
) -> int | None:
    """Bytes a rank. A search on a CPU needs a limit: without one the host itself would run out.

    Args:
        searches: some cell of the matrix is searched; the limit is then that of all its cells.
    """
    limit = matrix.launch.memory_limit
    if limit != "auto":
        return int(limit)
    if not searches or hardware.device == "cuda":
        return None
    limits: Mapping[str, int] = getattr(workload, "cpu_memory_limits", {})
    return limits.get(preset, memory_per_rank(matrix.launch, hardware) * 3 // 4)
