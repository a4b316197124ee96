"""What a user's accelerate config sets: the precision, and the settings of training that it decides. Pure.

accelerate replaces some values ``auto`` by what the training loop has, as `DeepSpeedPlugin` and
`Accelerator._prepare_deepspeed` do (accelerate 1.15). bench is that loop: these values stay the matrix's.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import JsonValue

from bench.backends.registry import Family, backend_of, engine_of, from_accelerate_config, is_on, section
from bench.records.base import Device
from bench.records.cell import Cell, Train
from bench.records.precision import MixedPrecision

DEEPSPEED_OPTIMIZER = "deepspeed:"
"""Begins `Train.optimizer` where a DeepSpeed config names the optimizer: ``deepspeed:AdamW``."""

PARALLELISM = "parallelism_config_"

HYBRID = ("HYBRID_SHARD", "HYBRID_SHARD_ZERO2")


def own_engine(config: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    """The content of the DeepSpeed JSON file that the config names, as it was written; empty if it names none."""
    return section(section(config, "deepspeed_config"), "deepspeed_config_file")


def own_precision(config: Mapping[str, JsonValue], requested: MixedPrecision | None) -> MixedPrecision:
    """The precision in which accelerate runs a user's config.

    Args:
        requested: what the matrix requests explicitly, like ``accelerate launch --mixed_precision``. It counts where
            the config sets none: without it, accelerate takes ``no``.
    """
    engine = own_engine(config)
    enabled = section(engine, "bf16").get("enabled", False) if "bf16" in engine else "auto"
    if engine and enabled != "auto":
        return "bf16" if is_on(enabled) else "no"
    stated: Any = config.get("mixed_precision")  # the matrix checks which it is
    return requested or "no" if stated is None else stated


def own_settings(config: Mapping[str, JsonValue]) -> dict[str, Any]:
    """The fields of `Train` that the config decides, whatever the matrix says."""
    family = from_accelerate_config(config).family
    decided: dict[str, Any] = {
        "offload": "none",
        "reshard_after_forward": None,
        "dp_replicate_size": 1,
        "zero_overlap_comm": None,
        **({} if family == "ddp" else {"bucket_mb": Train.model_fields["bucket_mb"].default}),
    }
    match family:
        case "fsdp" | "fsdp2":
            fsdp = section(config, "fsdp_config")
            if is_on(fsdp.get("fsdp_offload_params")):
                decided["offload"] = "params"
            if family == "fsdp2":
                reshards = is_on(fsdp.get("fsdp_reshard_after_forward", True))
                decided["reshard_after_forward"] = None if reshards else False  # as without a config
                decided["dp_replicate_size"] = parallel_sizes(config)["dp_replicate"]
        case "deepspeed":
            decided |= _of_engine(engine_of(config))
    return decided


def parallel_sizes(config: Mapping[str, JsonValue]) -> dict[str, int]:
    """The sizes of ``parallelism_config`` by dimension; all 1 if there is none."""
    given = section(config, "parallelism_config")
    sizes = {name: given.get(f"{PARALLELISM}{name}_size", 1) for name in ("dp_replicate", "dp_shard", "tp", "cp", "sp")}
    return {name: size if isinstance(size, int) else 1 for name, size in sizes.items()}


def _of_engine(engine: Mapping[str, JsonValue]) -> dict[str, Any]:
    """What a DeepSpeed config decides; without what it leaves to the training loop as ``auto``."""
    zero, decided = section(engine, "zero_optimization"), dict[str, Any]()
    on_host = [part for part in ("param", "optimizer") if _device(zero, part) == "cpu"]
    decided["offload"] = {"param": "params", "optimizer": "optimizer"}[on_host[0]] if on_host else "none"
    if isinstance(zero.get("overlap_comm"), bool):
        decided["zero_overlap_comm"] = zero["overlap_comm"]
    if (clipping := engine.get("gradient_clipping", 0)) != "auto":
        decided["max_grad_norm"] = float(str(clipping or 0)) or None
    if "optimizer" in engine:
        block = section(engine, "optimizer")
        given = {name: value for name, value in section(block, "params").items() if value is not None}
        decided["optimizer"] = f"{DEEPSPEED_OPTIMIZER}{block.get('type', 'AdamW')}"
        defaults = {"learning_rate": given.get("lr", 1e-3), "weight_decay": given.get("weight_decay", 0.0)}
        decided |= {name: float(str(value)) for name, value in defaults.items() if value != "auto"}
    return decided


def _device(zero: Mapping[str, JsonValue], part: str) -> str:
    older = {"optimizer": "cpu_offload", "param": "cpu_offload_param"}[part]  # DeepSpeed still takes these
    default = "cpu" if is_on(zero.get(older)) else "none"
    return str(section(zero, f"offload_{part}").get("device", default)).lower()


def extensions(cell: Cell, device: Device) -> tuple[str, ...]:
    """What DeepSpeed compiles for a cell of its family on first use, by the names of its builders."""
    engine = engine_of(cell.accelerate) if cell.accelerate is not None else {}
    needed = ["ShareMemCommBuilder"] if device == "cpu" else []
    kind = str(section(engine, "optimizer").get("type", "")).lower() if "optimizer" in engine else None
    if kind in ("adam", "adamw") and is_on(section(section(engine, "optimizer"), "params").get("torch_adam")):
        return tuple(needed)
    if cell.train.offload != "none":
        if kind is None and is_on(engine.get("zero_force_ds_cpu_optimizer", True)):
            needed.append("CPUAdamBuilder")
        elif kind is not None and kind in _ON_HOST:
            needed.append(_ON_HOST[kind])
    elif kind in _FUSED:
        needed.append(_FUSED[kind])
    return tuple(needed)


_ON_HOST = {
    "adam": "CPUAdamBuilder",
    "adamw": "CPUAdamBuilder",
    "adagrad": "CPUAdagradBuilder",
    "lion": "CPULionBuilder",
}
_FUSED = {
    "adam": "FusedAdamBuilder",
    "adamw": "FusedAdamBuilder",
    "lamb": "FusedLambBuilder",
    "lion": "FusedLionBuilder",
}
"""By the type of a DeepSpeed config's optimizer in lower case: the extension that it is made of."""

WHERE_TO_SET: Mapping[str, Mapping[Family, str]] = {
    "offload": {
        "fsdp": "fsdp_offload_params in its fsdp_config",
        "fsdp2": "fsdp_offload_params in its fsdp_config",
        "deepspeed": "offload_optimizer_device and offload_param_device in its deepspeed_config, or the device of"
        " offload_optimizer and offload_param in zero_optimization of its JSON file",
    },
    "reshard_after_forward": {"fsdp2": "fsdp_reshard_after_forward, true or false, in its fsdp_config"},
    "dp_replicate_size": {
        "fsdp2": "parallelism_config_dp_replicate_size and parallelism_config_dp_shard_size in its parallelism_config"
    },
    "bucket_mb": {},
    "zero_overlap_comm": {"deepspeed": "overlap_comm in zero_optimization of the JSON file that it names"},
    "max_grad_norm": {"deepspeed": "gradient_clipping; auto leaves it to the matrix"},
    "optimizer": {"deepspeed": "optimizer in its JSON file; without it, the matrix chooses"},
    "learning_rate": {"deepspeed": "lr of the optimizer in its JSON file; auto leaves it to the matrix"},
    "weight_decay": {"deepspeed": "weight_decay of the optimizer in its JSON file; auto leaves it to the matrix"},
}
"""Where the config of each family sets what `own_settings` decides."""


def forbids_own(cell: Cell, device: Device) -> str | None:
    """Why a cell with a user's config cannot run as its settings say; None if it can."""
    assert cell.accelerate is not None
    config = cell.accelerate
    family = from_accelerate_config(config).family
    for name, decided in own_settings(config).items():
        value = getattr(cell.train, name)
        left_open = value is None and Train.model_fields[name].default is None
        if value != decided and not left_open:
            where = WHERE_TO_SET[name].get(family)
            says = f"its own config decides it, by {where}" if where else "its distributed_type has no such setting"
            return f"train.{name}: {_word(value)} does not change {cell.backend}, which has {_word(decided)}: {says}"
    if cell.train.offload == "params" and backend_of(cell).sharding in ("zero0", "zero1", "zero2"):
        return "its config offloads weights, which DeepSpeed does under ZeRO-3 only"
    return _forbids_parallelism(cell, config, family, device) or (_forbids_on_cpu(cell) if device == "cpu" else None)


def _word(value: object) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _forbids_parallelism(cell: Cell, config: Mapping[str, JsonValue], family: Family, device: Device) -> str | None:
    sizes = parallel_sizes(config)
    total = sizes["dp_replicate"] * sizes["dp_shard"]
    if family == "single" or total == 1:
        return None
    if total != cell.num_processes:
        return (
            f"the sizes of its parallelism_config make {total} ranks, and there are {cell.num_processes}: set"
            f" launch.num_processes: {total}, or change the sizes"
        )
    if family == "fsdp":
        return "accelerate accepts a parallelism_config with fsdp_version 2, not with version 1"
    if family == "fsdp2" and sizes["dp_shard"] == 1:
        return "FSDP has no ranks to shard across: set parallelism_config_dp_shard_size to 2 or more"
    if family == "ddp" and device == "cpu":
        return "without a GPU, accelerate accepts a parallelism_config with FSDP or DeepSpeed only"
    return None


def _forbids_on_cpu(cell: Cell) -> str | None:
    backend = backend_of(cell)
    if cell.train.offload != "none" and backend.family in ("fsdp", "fsdp2"):
        return "its fsdp_offload_params: true pins weights in memory for a GPU, and this machine has none"
    if backend.sharding in HYBRID:
        return f"without GPUs, torch takes each rank for a node of its own, and {backend.sharding} shards nothing"
    return None
