"""The accelerate config of a cell, and the settings that such a config cannot express."""

from typing import Any

from bench.backends.precision import autocasts
from bench.backends.registry import FAMILIES, backend_of
from bench.backends.sharding import beside_sharding, sharding_config
from bench.records.base import Device
from bench.records.cell import Cell


def accelerate_config(cell: Cell, units: tuple[str, ...] | None, device: Device) -> dict[str, Any]:
    """The config that bench passes to `accelerate launch --config_file` for ``cell``.

    Args:
        units: class names of the modules to shard, each as one unit; a user's config may name others. None: the
            runner finds them in the model. Empty: the model is one unit.
        device: accelerate gets the same config for a CPU as for a GPU, because its MULTI_CPU type starts only one
            process on a single machine. The runner's device shim then keeps the ranks on the CPU.
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
    if FAMILIES[backend.family].wraps_units:
        # accelerate would look for a class with an empty name
        named = {"fsdp_transformer_layer_cls_to_wrap": ",".join(units)} if units else {}
        config["fsdp_config"] = {**named, **config.get("fsdp_config", {}), **sharding_config(cell)}
    if backend.family == "deepspeed":
        # The default of several nodes needs pdsh, and writes the whole environment into a file.
        spread = {"deepspeed_multinode_launcher": "standard"} if cell.num_nodes > 1 else {}
        config["deepspeed_config"] = {**config.get("deepspeed_config", {}), **spread, **sharding_config(cell)}
        if "deepspeed_config_file" in config["deepspeed_config"]:
            del config["mixed_precision"]  # accelerate rejects a precision that is set in both files
        else:
            config["deepspeed_config"] = {"gradient_clipping": cell.train.max_grad_norm, **config["deepspeed_config"]}
    return config


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
    if FAMILIES[family].reduces_in_fp32 and cell.mixed_precision == "bf16":
        settings.append("gradients reduced in fp32")
    if family == "deepspeed":
        settings.append("DeepSpeed's buckets no larger than the model")
    return settings + beside_sharding(cell)
