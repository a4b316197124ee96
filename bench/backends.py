"""One entry per backend: its accelerate config, its precision regime, and what it forbids and why. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import JsonValue

from bench.records.base import Device
from bench.records.cell import Cell
from bench.records.machine import Hardware

Family = Literal["single", "ddp", "fsdp", "fsdp2", "deepspeed"]


@dataclass(frozen=True, kw_only=True)
class Backend:
    """A way to spread a training step over ranks.

    Attributes:
        family: which of the five ways of setting up it takes.
        sharding: the observed sharding that proves it ran: see `Regime.sharding`.
        config: its own part of the accelerate config.
        about: one line for people.
    """

    family: Family
    sharding: str
    config: Mapping[str, Any]
    about: str


def _fsdp(version: int, **config: Any) -> dict[str, Any]:
    # Every rank builds the same weights from the same seed, so nothing needs to be broadcast; without a GPU
    # the two loading switches raise.
    return {
        "distributed_type": "FSDP",
        "fsdp_config": {
            "fsdp_version": version,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_cpu_ram_efficient_loading": False,
            "fsdp_sync_module_states": False,
            "fsdp_offload_params": False,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
            **config,
        },
    }


def _fsdp1(strategy: str) -> dict[str, Any]:
    return _fsdp(1, fsdp_sharding_strategy=strategy, fsdp_use_orig_params=True, fsdp_backward_prefetch="BACKWARD_PRE")


def _zero(stage: int) -> dict[str, Any]:
    return {
        "distributed_type": "DEEPSPEED",
        "deepspeed_config": {
            "zero_stage": stage,
            "gradient_accumulation_steps": 1,
            "offload_optimizer_device": "none",
            "offload_param_device": "none",
            "zero3_init_flag": False,
            "zero3_save_16bit_model": False,
        },
    }


BACKENDS: dict[str, Backend] = {
    "single": Backend(
        family="single", sharding="none", config={"distributed_type": "NO"}, about="one process, no communication"
    ),
    "ddp": Backend(
        family="ddp",
        sharding="none",
        config={"distributed_type": "MULTI_GPU"},
        about="DistributedDataParallel: all state on every rank, gradients all-reduced",
    ),
    "fsdp": Backend(
        family="fsdp",
        sharding="FULL_SHARD",
        config=_fsdp1("FULL_SHARD"),
        about="FullyShardedDataParallel, FULL_SHARD: weights, gradients and optimizer state sharded",
    ),
    "fsdp_grad_op": Backend(
        family="fsdp",
        sharding="SHARD_GRAD_OP",
        config=_fsdp1("SHARD_GRAD_OP"),
        about="FullyShardedDataParallel, SHARD_GRAD_OP: weights stay gathered between forward and backward",
    ),
    "fsdp2": Backend(
        family="fsdp2",
        sharding="fully_shard",
        config=_fsdp(2, fsdp_reshard_after_forward=True),
        about="fully_shard: per-parameter sharding with DTensor",
    ),
    "zero1": Backend(
        family="deepspeed", sharding="zero1", config=_zero(1), about="DeepSpeed ZeRO-1: optimizer state sharded"
    ),
    "zero2": Backend(
        family="deepspeed",
        sharding="zero2",
        config=_zero(2),
        about="DeepSpeed ZeRO-2: optimizer state and gradients sharded",
    ),
    "zero3": Backend(
        family="deepspeed",
        sharding="zero3",
        config=_zero(3),
        about="DeepSpeed ZeRO-3: weights, gradients and optimizer state sharded",
    ),
}


def backend_of(cell: Cell) -> Backend:
    """The cell's entry: a built-in one, or one read off the user's own accelerate config."""
    return BACKENDS[cell.backend] if cell.accelerate is None else own(cell.accelerate)


def preloads(cell: Cell) -> set[str]:
    """What bench/runner/preload.py imports for the cell: its backend's family, and `compile`."""
    return {backend_of(cell).family, *(["compile"] if cell.train.compile else [])}


def own(config: Mapping[str, JsonValue]) -> Backend:
    """Read off the user's own accelerate config."""
    fsdp, deepspeed = _section(config, "fsdp_config"), _section(config, "deepspeed_config")
    match config.get("distributed_type", "NO"):
        case "FSDP" if float(str(fsdp.get("fsdp_version", 1))) == 2:
            family, sharding = "fsdp2", "fully_shard"
        case "FSDP":
            strategies = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
            named = str(fsdp.get("fsdp_sharding_strategy", "FULL_SHARD"))
            family, sharding = "fsdp", strategies[int(named) - 1] if named.isdigit() else named
        case "DEEPSPEED":
            engine = _section(deepspeed, "deepspeed_config_file")
            stage = _section(engine, "zero_optimization").get("stage", 0 if engine else deepspeed.get("zero_stage", 2))
            family, sharding = "deepspeed", f"zero{stage}"
        case "MULTI_GPU":
            family, sharding = "ddp", "none"
        case _:
            family, sharding = "single", "none"
    return Backend(family=family, sharding=sharding, config=config, about="your own accelerate config")  # type: ignore[arg-type]


def _section(config: Mapping[str, JsonValue], key: str) -> Mapping[str, JsonValue]:
    section = config.get(key)
    return section if isinstance(section, dict) else {}


def accelerate_config(cell: Cell, units: tuple[str, ...], device: Device) -> dict[str, Any]:
    """What `accelerate launch --config_file` is given for ``cell``.

    Args:
        units: class names of the modules that are sharded as one; used unless the user's own config names its own.
        device: a CPU launch looks like a GPU launch to accelerate, because its MULTI_CPU type starts a single process
            on one machine; the runner's device shim does the rest.
    """
    backend = backend_of(cell)
    config: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "debug": False,
        "machine_rank": 0,
        "main_training_function": "main",
        "num_machines": 1,
        "rdzv_backend": "static",
        "same_network": True,
        **backend.config,
        "mixed_precision": cell.mixed_precision,
        "num_processes": cell.num_processes,
        "use_cpu": device == "cpu" and backend.family == "single",
    }
    if backend.family in ("fsdp", "fsdp2"):
        config["fsdp_config"] = {"fsdp_transformer_layer_cls_to_wrap": ",".join(units), **config.get("fsdp_config", {})}
    if backend.family == "deepspeed":
        config["deepspeed_config"] = dict(config.get("deepspeed_config", {}))
        if "deepspeed_config_file" in config["deepspeed_config"]:
            del config["mixed_precision"]  # accelerate refuses to be told twice
        else:
            config["deepspeed_config"] = {"gradient_clipping": cell.train.max_grad_norm, **config["deepspeed_config"]}
    return config


FOREIGN = ("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_", "TORCHELASTIC_", "PMI_", "OMPI_", "MV2_", "MPI_LOCALRANKID")
"""How the variables begin that would change a launch behind its config's back: accelerate's, other launchers'."""
RENDEZVOUS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
"""And these of a launcher around bench."""


def environment(num_processes: int, hardware: Hardware, user: Mapping[str, str]) -> dict[str, str]:
    """Variables that bench adds to a launch; what the user has set already stays as it is.

    Args:
        user: the environment that bench itself was started with.
    """
    added = {"OMP_NUM_THREADS": str(max(1, hardware.cores // num_processes)), "TOKENIZERS_PARALLELISM": "false"}
    added["TORCH_FR_BUFFER_SIZE"] = "2000"  # torch's flight recorder: the collectives that a hang is explained by
    if hardware.device == "cuda":
        # torch.cuda.is_available() then asks NVML, so that a rank server can import everything and still fork.
        added["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
        if "PYTORCH_ALLOC_CONF" not in user:
            added["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    else:
        added |= {"DS_ACCELERATOR": "cpu", "ACCELERATE_TORCH_DEVICE": "cpu", "CUDA_VISIBLE_DEVICES": ""}
        added["GLOO_SOCKET_IFNAME"] = "lo"
    return {name: value for name, value in added.items() if name not in user or name.startswith(FOREIGN)}


def launch_environment(user: Mapping[str, str], added: Mapping[str, str], tools: Path) -> dict[str, str]:
    """The whole environment of a launch: the user's, less what would change a cell behind its back.

    accelerate reads its settings from variables too, and any launcher around bench leaves its own rendezvous behind.

    Args:
        tools: the folder of this environment's programs; found first, so that DeepSpeed builds with one ninja.
    """
    kept = {name: value for name, value in user.items() if not name.startswith(FOREIGN) and name not in RENDEZVOUS}
    return {**kept, **added, "PATH": f"{tools}:{kept.get('PATH', '')}"}


def beside_config(cell: Cell) -> list[str]:
    """What bench sets that an accelerate config cannot say."""
    if cell.accelerate is not None:
        return []
    family = backend_of(cell).family
    said = ["autocast off"]
    if family == "fsdp2" and cell.mixed_precision == "bf16":
        said.append("gradients reduced in fp32")
    if family == "deepspeed":
        said.append("DeepSpeed's buckets no larger than the model")
    return said


def forbids(cell: Cell, device: Device) -> str | None:
    """Why this cell cannot run, or None. The sweep records it as skipped."""
    family, sharding = backend_of(cell).family, backend_of(cell).sharding
    if sharding == "zero3" and cell.options.get("grad_ckpt"):
        return (
            "ZeRO-3 with gradient checkpointing: recomputation meets parameters that are partitioned again, and their"
            " shapes differ from those saved in forward"
        )
    if family == "deepspeed" and cell.train.optimizer == "none":
        return "DeepSpeed's ZeRO needs an optimizer: it has no forward-and-backward-only step"
    if family not in ("single", "ddp") and not cell.train.master_weights:
        return f"{cell.backend} keeps fp32 masters of its own, which bench cannot leave out"
    if family != "single" and device == "cpu" and cell.num_processes == 1:
        return f"{cell.backend} on a CPU needs two processes: accelerate opens no process group for one"
    if family in ("fsdp", "fsdp2"):
        return _forbids_loading(_section(backend_of(cell).config, "fsdp_config"), family, device)
    return None


def _forbids_loading(fsdp: Mapping[str, JsonValue], family: Family, device: Device) -> str | None:
    """What accelerate says of these two in set-up, where it says it in other words or only after a while."""
    switches = ("fsdp_cpu_ram_efficient_loading", "fsdp_sync_module_states")
    loading, synced = (
        str(fsdp.get(name, True)).lower() not in ("false", "no", "off", "n", "f", "0") for name in switches
    )
    if family == "fsdp" and device == "cpu" and (loading or synced):
        return (
            "accelerate sends FSDP's weights by way of a GPU, unless its config says so: set"
            " fsdp_cpu_ram_efficient_loading: false and fsdp_sync_module_states: false in its fsdp_config"
        )
    if loading and not synced:
        return (
            "accelerate refuses fsdp_sync_module_states: false as long as fsdp_cpu_ram_efficient_loading is true, as it"
            " is unless set: set both to false in its fsdp_config"
        )
    return None


def expected_regime(cell: Cell, device: Device) -> dict[str, object]:
    """What the cell asked for, in the fields of `Regime`; a field that is left out is not checked.

    ddp and single hold weights in bf16 and step fp32 copies of them; DeepSpeed does the same by itself; FSDP's fp32
    shards are the masters and its mixed precision computes in bf16 (torch FSDP MixedPrecision, DeepSpeed bf16).
    """
    backend = backend_of(cell)
    low = {"bf16": "bfloat16", "no": "float32"}[cell.mixed_precision]
    fp32_weights = backend.family in ("fsdp", "fsdp2")
    alone = cell.num_processes == 1
    stepped = None if cell.train.optimizer == "none" else "float32" if cell.train.master_weights else low
    distributed_types = {
        "single": "NO",
        "ddp": f"MULTI_{'CPU' if device == 'cpu' else 'GPU'}",
        "deepspeed": "DEEPSPEED",
    }
    regime: dict[str, object] = {
        "world_size": cell.num_processes,
        "distributed_type": distributed_types.get(backend.family, "FSDP"),
        # torch's FSDP1 replaces its strategy by NO_SHARD in a world of one.
        "sharding": "NO_SHARD" if alone and backend.family == "fsdp" else backend.sharding,
        "weights_dtype": "float32" if fp32_weights else low,
        "masters_dtype": stepped,
        "optimizer_dtype": stepped,
    }
    if cell.accelerate is None:
        reduction = "float32" if backend.family == "fsdp2" else low
        regime["reduction_dtype"] = None if alone else reduction
    return regime


def shards_parameters(cell: Cell) -> bool:
    """Whether each rank must hold only a part of the parameters."""
    return cell.num_processes > 1 and backend_of(cell).sharding not in ("none", "NO_SHARD", "zero0", "zero1", "zero2")
