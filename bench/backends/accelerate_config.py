"""The accelerate config of a cell, and the settings that such a config cannot express."""

from collections.abc import Mapping
from typing import Any

from bench.backends.registry import FAMILIES, autocasts, backend_of
from bench.backends.sharding import beside_sharding, sharding_config
from bench.records.base import Device
from bench.records.cell import Cell


def accelerate_config(cell: Cell, units: tuple[str, ...] | None, device: Device) -> dict[str, Any]:
    """The config that bench passes to `accelerate launch --config_file` for ``cell``. It leaves the micro-batches of a
    step to the program: a value of DeepSpeed's section would count instead (accelerate/accelerator.py).

    Args:
        units: class names of the modules to shard, each as one unit. None: the runner finds them in the model. Empty:
            the model is one unit. A user's config, or else accelerate, says what it wraps.
        device: accelerate gets the same config for a CPU as for a GPU, because its MULTI_CPU type starts only one
            process on a single machine. The runner's device adapter then keeps the ranks on the CPU.
    """
    backend = backend_of(cell)
    config: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "debug": False,
        "machine_rank": 0,
        "main_training_function": "main",
        "rdzv_backend": "static",
        "same_network": True,
        **backend.config,
        "mixed_precision": cell.mixed_precision,
        "num_machines": cell.num_nodes,
        "num_processes": cell.num_processes,
        "use_cpu": device == "cpu" and backend.family == "single",
    }
    own = cell.accelerate is not None
    options = {} if own else sharding_config(cell)
    if FAMILIES[backend.family].wraps_units and not (own and cell.script is None):
        # accelerate would look for a class with an empty name
        named = {"fsdp_transformer_layer_cls_to_wrap": ",".join(units)} if units else {}
        config["fsdp_config"] = {**named, **(config.get("fsdp_config") or {}), **options}
    if backend.family == "deepspeed":
        # The default of several nodes needs pdsh, and writes the whole environment into a file.
        spread = {"deepspeed_multinode_launcher": "standard"} if cell.num_nodes > 1 else {}
        engine_section = {**(config.get("deepspeed_config") or {}), **spread, **options}
        if "deepspeed_config_file" in engine_section:
            del config["mixed_precision"]  # accelerate rejects a precision that is set in both files
            if cell.script is None:
                engine_section["deepspeed_config_file"] = _resolved(engine_section["deepspeed_config_file"], cell)
        elif engine_section.get("gradient_clipping") in (None, "auto"):
            engine_section["gradient_clipping"] = cell.train.max_grad_norm or 0
        config["deepspeed_config"] = engine_section
    return config


def _resolved(engine: Mapping[str, Any], cell: Cell) -> dict[str, Any]:
    """A user's DeepSpeed config with what `accelerate launch --mixed_precision` and the training loop would fill in.

    The runner fills in what depends on the batch; accelerate fills in the rest.
    """
    precision = {**engine.get("bf16", {}), "enabled": cell.in_bf16}
    clipping = {"gradient_clipping": cell.train.max_grad_norm or 0} if engine.get("gradient_clipping") == "auto" else {}
    return {**engine, "bf16": precision, **clipping}


def beside_config(cell: Cell, device: Device) -> list[str]:
    """Settings of a cell that an accelerate config cannot express; the runner applies them."""
    family = backend_of(cell).family
    settings = ["device cpu"] if device == "cpu" and family != "single" else []
    if cell.accelerate is not None:
        return settings
    if not autocasts(cell):
        settings.append("autocast off")
    if cell.train.cpu_affinity:
        settings.append("ranks bound to the cores beside their GPUs")
    if FAMILIES[family].reduces_in_fp32 and cell.in_16_bits:
        settings.append("gradients reduced in fp32")
    if family == "deepspeed":
        settings.append("DeepSpeed's buckets no larger than the model")
    return settings + beside_sharding(cell)
