"""What depends on this machine: defaults, and `auto` for ranks, memory and preset. Pure."""

from pydantic import JsonValue

from bench.backends import BACKENDS, UNSHARDED_BYTES, bytes_per_parameter, from_accelerate_config
from bench.errors import near_miss
from bench.matrix.combinations import Value
from bench.matrix.matrix_file import Launch, Matrix, Values
from bench.matrix.yaml_file import refusal, show
from bench.records.base import Device
from bench.records.machine import Hardware
from bench.records.precision import MixedPrecision
from bench.workloads import Definition

MEASURE_BY_DEVICE: dict[Device, dict[str, int]] = {
    "cpu": {"warmup_steps": 2, "steps": 5, "phase_steps": 5},
    "cuda": {"dataloader_workers": 2, "warmup_s": 10},
}
"""Defaults of `measure` that depend on the device."""


def num_processes(launch: Launch, hardware: Hardware) -> int:
    """Ranks of every backend but ``single``, on all nodes together.

    Args:
        hardware: of each node.
    """
    if launch.num_processes == "auto":
        return hardware.devices * launch.nodes if hardware.device == "cuda" else max(2, launch.nodes)
    return launch.num_processes


def memory_per_rank(matrix: Matrix, hardware: Hardware) -> int:
    """Bytes for ``preset: auto``: one GPU's memory, or a rank's share of the host's."""
    if hardware.device == "cuda":
        return hardware.memory_bytes
    return hardware.memory_bytes // -(-num_processes(matrix.launch, hardware) // matrix.launch.nodes)


def resolve_preset(
    matrix: Matrix, workload: Definition, requested: Value, hardware: Hardware
) -> tuple[JsonValue, Values]:
    """The name of the preset, with ``auto`` resolved, and its fields."""
    preset = requested.value
    if preset == "auto":
        if workload.auto_preset is None or not workload.presets:
            return preset, {}
        preset = workload.auto_preset(hardware.device, _memory_if_unsharded(matrix, hardware))
    if not isinstance(preset, str) or preset not in workload.presets:
        raise refusal(
            f"{show(preset)} is not a preset of {matrix.workload.name}",
            matrix.places,
            requested.key,
            allowed=["auto", *workload.presets],
            fix=near_miss(preset, ["auto", *workload.presets]),
        )
    return preset, dict(workload.presets[preset])


def _memory_if_unsharded(matrix: Matrix, hardware: Hardware) -> int:
    """Bytes that a rank would need if it held `UNSHARDED_BYTES` of each parameter, and not what it holds with the most
    demanding backend of the matrix."""
    memory_bytes = memory_per_rank(matrix, hardware)
    known = {**BACKENDS, **{name: from_accelerate_config(config) for name, config in matrix.configs.items()}}
    used = {name: known[name] for name in map(str, matrix.values_of("backend")) if name in known}
    if hardware.device == "cpu" or not used:
        return memory_bytes
    foreach = True in (matrix.train.foreach, *matrix.values_of("foreach"))
    keeps_whole = False in (matrix.train.reshard_after_forward, *matrix.values_of("reshard_after_forward"))
    sizes = [matrix.train.dp_replicate_size, *matrix.values_of("dp_replicate_size")]
    replicas = max(size for size in sizes if isinstance(size, int))
    ranks = num_processes(matrix.launch, hardware)
    bf16_weights = asks_for_bf16_weights(matrix)
    held = (
        bytes_per_parameter(
            backend,
            ranks,
            replicas=replicas,
            foreach=foreach,
            keeps_whole=keeps_whole,
            fp32_weights=name in matrix.configs or not bf16_weights,
        )
        for name, backend in used.items()
    )
    return round(memory_bytes * UNSHARDED_BYTES / max(held))


def asks_for_bf16_weights(matrix: Matrix) -> bool:
    """Whether any of its cells does, by train or by an axis."""
    return "bf16" in (matrix.train.weights, *matrix.values_of("weights"))


def precision(launch: Launch, hardware: Hardware) -> MixedPrecision:
    """What the matrix states; else its default on this hardware."""
    return launch.mixed_precision if "mixed_precision" in launch.model_fields_set or hardware.bf16 else "no"


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
    return workload.cpu_memory_limits.get(preset, memory_per_rank(matrix, hardware) * 3 // 4)
