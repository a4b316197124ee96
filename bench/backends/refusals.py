"""Cells that their backend forbids."""

from collections.abc import Mapping

from pydantic import JsonValue

from bench.backends.own_config import DEEPSPEED_OPTIMIZER
from bench.backends.registry import FAMILIES, NOT_SHARDED, Family, autocasts, backend_of, section
from bench.backends.sharding import forbids_option
from bench.records.base import Device
from bench.records.cell import Cell
from bench.records.precision import SCALED
from bench.records.script import Script


def forbids(cell: Cell, device: Device) -> str | None:
    """Why this cell cannot run, or None when it can. The sweep records a cell that cannot run as skipped."""
    return _forbids(cell, device) if cell.script is None else _forbids_script(cell.script, cell, device)


def _forbids(cell: Cell, device: Device) -> str | None:
    family = backend_of(cell).family
    if reason := forbids_option(cell, device) or _forbids_training(cell, family):
        return reason
    if cell.train.cpu_affinity and device == "cpu":
        return "train.cpu_affinity binds ranks to the cores beside their GPUs, and this machine has none"
    clips = cell.train.max_grad_norm is not None
    if cell.train.fused and clips and family == "fsdp" and cell.mixed_precision in SCALED:
        return "a fused optimizer fails on gradients that FSDP1's scaler unscaled to clip them: set train.fused: false"
    if family in ("fsdp", "fsdp2"):
        return _forbids_loading(section(backend_of(cell).config, "fsdp_config"), family, device)
    return None


def _forbids_training(cell: Cell, family: Family) -> str | None:
    """Master weights, optimizers and compilation that the backend does not have, or that its sharding breaks."""
    traits, train = FAMILIES[family], cell.train
    if traits.keeps_masters and cell.in_16_bits and not train.master_weights:
        return f"{cell.backend} always keeps its own fp32 master weights; bench cannot turn them off"
    if autocasts(cell) and not train.master_weights:
        return f"the optimizer of {cell.backend} updates its fp32 weights, of which there are no copies: weights: bf16"
    if train.optimizer == "muon" and traits.flattens_weights:
        return (
            f"Muon orthogonalizes whole matrices, and {cell.backend} gives the optimizer flat parts of the weights: use"
            " single, ddp or fsdp2"
        )
    if reason := cell.forbids_sync(backend_of(cell).sharding):
        return reason
    if train.compile == "model" and backend_of(cell).sharding not in NOT_SHARDED:
        return (
            f"{cell.backend} gathers weights in hooks around each unit, and torch.compile makes no graph across"
            " them: it would compile pieces and not the model; use compile: unit"
        )
    return _forbids_engine(cell) if family == "deepspeed" else None


def _forbids_engine(cell: Cell) -> str | None:
    """Optimizers that DeepSpeed does not take."""
    train = cell.train
    if train.optimizer == "none":
        return "DeepSpeed's ZeRO needs an optimizer: it has no forward-and-backward-only step"
    own_optimizer = ":" in train.optimizer and not train.optimizer.startswith(DEEPSPEED_OPTIMIZER)
    if train.offload != "none" and own_optimizer:
        return f"with offload, accelerate replaces {train.optimizer} by DeepSpeed's Adam for the host: use adamw"
    return None


def _forbids_script(script: Script, cell: Cell, device: Device) -> str | None:
    if not script.uses("accelerate_config") or device == "cuda":
        return None
    if backend_of(cell).family in ("single", "ddp"):
        return None
    return "without a GPU, accelerate runs every script with DDP and ignores its config; measure a workload instead"


def _forbids_loading(fsdp: Mapping[str, JsonValue], family: Family, device: Device) -> str | None:
    """Loading switches that accelerate rejects during set-up, late or with an unclear message."""
    switches = ("fsdp_cpu_ram_efficient_loading", "fsdp_sync_module_states")
    loading, synced = (
        str(fsdp.get(name, True)).lower() not in ("false", "no", "off", "n", "f", "0") for name in switches
    )
    if family == "fsdp" and device == "cpu" and (loading or synced):
        return (
            "by default accelerate moves FSDP's weights through a GPU: set fsdp_cpu_ram_efficient_loading: false and"
            " fsdp_sync_module_states: false in its fsdp_config"
        )
    if loading and not synced:
        return (
            "accelerate rejects fsdp_sync_module_states: false while fsdp_cpu_ram_efficient_loading is true, which is"
            " its default: set both to false in its fsdp_config"
        )
    return None
