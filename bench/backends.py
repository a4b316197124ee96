"""The backends: their accelerate configs, the regime each should show, and the cells they cannot run. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import JsonValue

from bench.errors import InputError
from bench.records.base import Device
from bench.records.cell import Cell

Family = Literal["single", "ddp", "fsdp", "fsdp2", "deepspeed"]


@dataclass(frozen=True, kw_only=True)
class FamilyTraits:
    """What the backends of one family have in common.

    Attributes:
        distributed_type: accelerate's name of it, in a config.
        distributed_type_on_cpu: the name that accelerate reports for it on a CPU, if that is another one.
        package: the package that it needs.
        preloads: modules to import before the first step, besides those that every family needs.
        fp32_weights: weights are fp32 and are the master weights; mixed precision only computes in bf16.
        keeps_masters: it always has fp32 master weights of its own.
        reduces_in_fp32: gradients are reduced in fp32 whatever the dtype of the weights.
        wraps_units: its accelerate config names the classes of the workload's units.
        prepares_optimizer: accelerate prepares the model and its optimizer together.
    """

    distributed_type: str
    distributed_type_on_cpu: str | None = None
    package: str = "torch"
    preloads: tuple[str, ...] = ()
    fp32_weights: bool = False
    keeps_masters: bool = False
    reduces_in_fp32: bool = False
    wraps_units: bool = False
    prepares_optimizer: bool = False


FAMILIES: dict[Family, FamilyTraits] = {
    "single": FamilyTraits(distributed_type="NO"),
    "ddp": FamilyTraits(distributed_type="MULTI_GPU", distributed_type_on_cpu="MULTI_CPU"),
    "fsdp": FamilyTraits(distributed_type="FSDP", fp32_weights=True, keeps_masters=True, wraps_units=True),
    "fsdp2": FamilyTraits(
        distributed_type="FSDP",
        preloads=("deepspeed",),  # accelerate imports it to clip FSDP2's gradients
        fp32_weights=True,
        keeps_masters=True,
        reduces_in_fp32=True,
        wraps_units=True,
        prepares_optimizer=True,
    ),
    "deepspeed": FamilyTraits(
        distributed_type="DEEPSPEED",
        package="deepspeed",
        preloads=(
            "transformers.integrations.deepspeed",
            "deepspeed",
            "torch._inductor.compile_fx",
            "torch.utils.cpp_extension",
            "deepspeed.runtime.superoffload",
        ),
        keeps_masters=True,
        prepares_optimizer=True,
    ),
}
"""All families. To add one: an entry here, its name in `Family`, its config in `from_accelerate_config`, how the runner
sets it up in bench/runner/setup.py and bench/runner/device.py, what it shards in bench/report/theory.py, and its
backends in `BACKENDS`."""

SHARDING_STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
"""FSDP's strategies in the order of their numbers, from 1."""


@dataclass(frozen=True, kw_only=True)
class Backend:
    """A way to spread a training step over ranks.

    Attributes:
        family: how the runner sets it up; see `FAMILIES`.
        sharding: the value of `Regime.sharding` that proves this backend ran.
        config: the fields of the accelerate config that are specific to this backend.
        about: a one-line description for people.
    """

    family: Family
    sharding: str
    config: Mapping[str, Any]
    about: str


def _fsdp(version: int, **config: Any) -> dict[str, Any]:
    # Every rank builds the same weights from the same seed, so no broadcast is needed. Without a GPU, both loading
    # switches raise an error.
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
"""All built-in backends. To add one of a known family: an entry here."""


def backend_of(cell: Cell) -> Backend:
    """The cell's backend: a built-in one, or the one that the user's accelerate config describes."""
    return BACKENDS[cell.backend] if cell.accelerate is None else from_accelerate_config(cell.accelerate)


def preloads(cell: Cell) -> set[str]:
    """Modules that a rank imports before the first step of ``cell``: see bench/runner/preload.py."""
    return {
        *FAMILIES[backend_of(cell).family].preloads,
        *(["torch._inductor.compile_fx"] if cell.train.compile else []),
    }


def from_accelerate_config(config: Mapping[str, JsonValue]) -> Backend:
    """The backend that a user's accelerate config describes."""
    fsdp, deepspeed = _section(config, "fsdp_config"), _section(config, "deepspeed_config")
    match config.get("distributed_type", "NO"):
        case "FSDP" if float(str(fsdp.get("fsdp_version", 1))) == 2:
            family, sharding = "fsdp2", "fully_shard"
        case "FSDP":
            strategy = str(fsdp.get("fsdp_sharding_strategy", "FULL_SHARD"))
            family, sharding = "fsdp", SHARDING_STRATEGIES[int(strategy) - 1] if strategy.isdigit() else strategy
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
    """The config that bench passes to `accelerate launch --config_file` for ``cell``.

    Args:
        units: class names of the modules to shard, each as one unit; a user's config may name others.
        device: accelerate gets the same config for a CPU as for a GPU, because its MULTI_CPU type starts only one
            process on a single machine. The runner's device shim then keeps the ranks on the CPU.
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
    if FAMILIES[backend.family].wraps_units:
        config["fsdp_config"] = {"fsdp_transformer_layer_cls_to_wrap": ",".join(units), **config.get("fsdp_config", {})}
    if backend.family == "deepspeed":
        config["deepspeed_config"] = dict(config.get("deepspeed_config", {}))
        if "deepspeed_config_file" in config["deepspeed_config"]:
            del config["mixed_precision"]  # accelerate rejects a precision that is set in both files
        else:
            config["deepspeed_config"] = {"gradient_clipping": cell.train.max_grad_norm, **config["deepspeed_config"]}
    return config


def beside_config(cell: Cell) -> list[str]:
    """Settings of a cell that an accelerate config cannot express; the runner applies them."""
    if cell.accelerate is not None:
        return []
    family = backend_of(cell).family
    settings = ["autocast off"]
    if FAMILIES[family].reduces_in_fp32 and cell.mixed_precision == "bf16":
        settings.append("gradients reduced in fp32")
    if family == "deepspeed":
        settings.append("DeepSpeed's buckets no larger than the model")
    return settings


def forbids(cell: Cell, device: Device) -> str | None:
    """Why this cell cannot run, or None when it can. The sweep records a cell that cannot run as skipped."""
    family, sharding = backend_of(cell).family, backend_of(cell).sharding
    if sharding == "zero3" and cell.options.get("grad_ckpt"):
        return (
            "ZeRO-3 with gradient checkpointing does not work: the parameters are partitioned again before"
            " recomputation, so their shapes differ from those saved in forward"
        )
    if family == "deepspeed" and cell.train.optimizer == "none":
        return "DeepSpeed's ZeRO needs an optimizer: it has no forward-and-backward-only step"
    if FAMILIES[family].keeps_masters and not cell.train.master_weights:
        return f"{cell.backend} always keeps its own fp32 master weights; bench cannot turn them off"
    if family != "single" and device == "cpu" and cell.num_processes == 1:
        return f"{cell.backend} on a CPU needs at least two processes: accelerate creates no process group for one"
    if family in ("fsdp", "fsdp2"):
        return _forbids_loading(_section(backend_of(cell).config, "fsdp_config"), family, device)
    return None


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


def expected_regime(cell: Cell, device: Device) -> dict[str, object]:
    """The regime that the cell requests, as attributes of `Regime`. One that is absent is not checked.

    ddp and single keep weights in bf16, and the optimizer updates fp32 copies of them; DeepSpeed does the same inside
    its engine. FSDP's fp32 shards are the master weights, and its mixed precision computes in bf16 (torch FSDP
    MixedPrecision, DeepSpeed bf16).
    """
    backend = backend_of(cell)
    family = FAMILIES[backend.family]
    low = {"bf16": "bfloat16", "no": "float32"}[cell.mixed_precision]
    alone = cell.num_processes == 1
    master = None if cell.train.optimizer == "none" else "float32" if cell.train.master_weights else low
    on_cpu = family.distributed_type_on_cpu if device == "cpu" else None
    regime: dict[str, object] = {
        "world_size": cell.num_processes,
        "distributed_type": on_cpu or family.distributed_type,
        # With one rank, torch's FSDP1 replaces its strategy by NO_SHARD.
        "sharding": "NO_SHARD" if alone and backend.family == "fsdp" else backend.sharding,
        "weights_dtype": "float32" if family.fp32_weights else low,
        "masters_dtype": master,
        "optimizer_dtype": master,
        "matmul_dtype": low,
    }
    if cell.accelerate is None:
        reduction = "float32" if family.reduces_in_fp32 else low
        regime["reduction_dtype"] = None if alone else reduction
    return regime


def shards_parameters(cell: Cell) -> bool:
    """Whether each rank must hold only a part of the parameters."""
    return cell.num_processes > 1 and backend_of(cell).sharding not in ("none", "NO_SHARD", "zero0", "zero1", "zero2")


WHY_NO_ACCUMULATION = (
    "bench measures whole optimizer steps. With accumulation, each micro-step would count as a step, and the reported"
    " throughput would be too high by that factor. It is always 1; choose a larger batch"
)


def accumulation_refused(value: str, where: str | None, field: str) -> InputError:
    """The message of every refusal of accumulation, wherever it was requested."""
    return InputError(f"{value}: gradient accumulation is refused", where=where, field=field, fix=WHY_NO_ACCUMULATION)
