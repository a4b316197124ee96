"""The sharding options of a cell: what they set, and the backends to which they do not apply. Pure."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import JsonValue

from bench.backends.own_config import forbids_own, parallel_sizes
from bench.backends.registry import Family, backend_of
from bench.records.base import Device
from bench.records.cell import Cell, Train


class Option(NamedTuple):
    """A sharding option: the families that have it, and what to say of the others."""

    families: tuple[Family, ...]
    elsewhere: str


OPTIONS: dict[str, Option] = {
    "reshard_after_forward": Option(("fsdp2",), "fsdp_grad_op is the backend that keeps FSDP1's weights gathered"),
    "dp_replicate_size": Option(("fsdp2",), "only FSDP2 gets a mesh from bench"),
    "offload": Option(("fsdp", "fsdp2", "deepspeed"), "it keeps all its state on its device"),
    "zero_overlap_comm": Option(("deepspeed",), "it is a setting of DeepSpeed"),
    "bucket_mb": Option(("ddp",), "it is a setting of DDP"),
}
"""By field of `Train`."""


def forbids_option(cell: Cell, device: Device) -> str | None:
    """Why a sharding option of the cell does not apply to its backend; None if all do."""
    family = backend_of(cell).family
    if cell.accelerate is not None:
        return forbids_own(cell, device)
    for name, option in OPTIONS.items():
        if (value := getattr(cell.train, name)) == Train.model_fields[name].default:
            continue
        if family not in option.families:
            return f"{cell.backend} has no {name}: {option.elsewhere}"
        if reason := _forbids_value(cell, name, device):
            return f"train.{name}: {str(value).lower()} does not work with {cell.backend}: {reason}"
    return None


def _forbids_value(cell: Cell, name: str, device: Device) -> str | None:
    ranks, train, backend = cell.num_processes, cell.train, backend_of(cell)
    per_group, rest = divmod(ranks, train.dp_replicate_size)
    match name:
        case "dp_replicate_size" if rest:
            return f"{ranks} ranks cannot be split into {train.dp_replicate_size} equal groups"
        case "reshard_after_forward" if type(train.reshard_after_forward) is int:
            if train.reshard_after_forward >= per_group or per_group % train.reshard_after_forward:
                return f"it must divide the {per_group} ranks that share a model, and be less; `true` means all"
        case "offload" if device == "cpu" and backend.family == "fsdp":
            return "FSDP1 pins offloaded weights for a GPU, and this machine has none"
        case "offload" if train.offload == "optimizer" and backend.family in ("fsdp", "fsdp2"):
            return "FSDP offloads the optimizer together with the weights: use params"
        case "offload" if train.offload == "params" and backend.sharding in ("zero1", "zero2"):
            return "DeepSpeed offloads weights under ZeRO-3 only"
    return None


def sharding_config(cell: Cell) -> dict[str, Any]:
    """The fields of accelerate's section for FSDP or DeepSpeed that the options set."""
    train = cell.train
    match backend_of(cell).family:
        case "fsdp" if train.offload != "none":
            return {"fsdp_offload_params": True}
        case "fsdp2":
            return {
                **({"fsdp_offload_params": True} if train.offload != "none" else {}),
                # accelerate's field takes no number
                **({"fsdp_reshard_after_forward": False} if train.reshard_after_forward is False else {}),
            }
        case "deepspeed" if train.offload != "none":
            params = {"offload_param_device": "cpu"} if train.offload == "params" else {}
            return {"offload_optimizer_device": "cpu", **params}
    return {}


def beside_sharding(cell: Cell) -> list[str]:
    """What the options set outside the accelerate config, in words."""
    train, settings = cell.train, []
    if backend_of(cell).family == "fsdp2":
        settings.append("mesh " + " x ".join(f"{name} {size}" for name, size in mesh(cell).items()))
        if type(train.reshard_after_forward) is int:
            settings.append(f"weights resharded to groups of {train.reshard_after_forward} after forward")
    if train.zero_overlap_comm is not None:
        settings.append(f"overlap_comm {str(train.zero_overlap_comm).lower()}")
    return settings


def mesh(cell: Cell) -> dict[str, int]:
    """The dimensions of FSDP2's mesh, outermost first. Pipeline and tensor parallelism have their places, of size 1."""
    replicas = cell.train.dp_replicate_size
    if replicas == 1:
        return {"pp": 1, "dp": cell.num_processes, "tp": 1}
    return {"pp": 1, "dp_replicate": replicas, "dp_shard": cell.num_processes // replicas, "tp": 1}


def expected_sharding(cell: Cell) -> dict[str, object]:
    """The attributes of `Regime` that the options decide."""
    train = cell.train
    if cell.accelerate is not None:
        return _expected_of_own(cell, cell.accelerate)
    match backend_of(cell).family:
        case "fsdp":
            return {"offload": train.offload}
        case "fsdp2":
            reshard = True if train.reshard_after_forward is None else train.reshard_after_forward
            return {"offload": train.offload, "mesh": mesh(cell), "reshard_after_forward": reshard}
        case "deepspeed":
            overlap, default = train.zero_overlap_comm, backend_of(cell).sharding == "zero3"
            return {"offload": train.offload, "overlap_comm": default if overlap is None else overlap}
    return {}


def _expected_of_own(cell: Cell, config: Mapping[str, JsonValue]) -> dict[str, object]:
    """accelerate has FSDP2 on a mesh only with a ``parallelism_config``; it leaves out dimensions of size 1."""
    family, sizes = backend_of(cell).family, parallel_sizes(config)
    meshed = {name: size for name, size in sizes.items() if size > 1}
    return {
        **({} if family in ("single", "ddp") else {"offload": cell.train.offload}),
        **({"mesh": meshed or None} if family == "fsdp2" else {}),
    }
