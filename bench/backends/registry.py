"""The tables of backends and families, and the backend of a cell."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import JsonValue

from bench.records.cell import HOLD_WHOLE_WEIGHTS, Cell

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
        shards_state: each rank holds a part of the optimizer's state.
        flattens_weights: the optimizer gets flat parts of the weights, in which matrices are not to be seen.
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
    shards_state: bool = False
    flattens_weights: bool = False


FAMILIES: dict[Family, FamilyTraits] = {
    "single": FamilyTraits(distributed_type="NO"),
    "ddp": FamilyTraits(distributed_type="MULTI_GPU", distributed_type_on_cpu="MULTI_CPU"),
    "fsdp": FamilyTraits(
        distributed_type="FSDP",
        fp32_weights=True,
        keeps_masters=True,
        wraps_units=True,
        shards_state=True,
        flattens_weights=True,
    ),
    "fsdp2": FamilyTraits(
        distributed_type="FSDP",
        preloads=("deepspeed",),  # accelerate imports it to clip FSDP2's gradients
        fp32_weights=True,
        keeps_masters=True,
        reduces_in_fp32=True,
        wraps_units=True,
        prepares_optimizer=True,
        shards_state=True,
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
        shards_state=True,
        flattens_weights=True,
    ),
}
"""All families. To add one: an entry here, its name in `Family`, its config in `from_accelerate_config`, how the runner
sets it up in bench/runner/setup.py and bench/runner/device.py, what it shards in bench/report/theory.py and
adds to memory in bench/backends/forecast.py, and its backends in `BACKENDS`."""

NOT_SHARDED = ("none", "NO_SHARD", "zero0", "zero1", "zero2")
"""Values of `Regime.sharding` with whole weights on every rank."""

SHARDING_STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
"""FSDP's strategies in the order of their numbers, from 1."""

DEFAULT_STAGE = 2
"""ZeRO's stage where accelerate is told none, or ``auto``."""


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


def autocasts(cell: Cell) -> bool:
    """Whether forward runs under autocast over fp32 weights, as accelerate runs it."""
    if not cell.in_16_bits or backend_of(cell).family not in HOLD_WHOLE_WEIGHTS:
        return False
    return not cell.chooses_weights or cell.train.weights == "fp32"


def fp32_weights(cell: Cell) -> bool:
    """Whether the model is built in fp32, and the optimizer updates its weights or shards of them."""
    return cell.mixed_precision == "no" or FAMILIES[backend_of(cell).family].fp32_weights or autocasts(cell)


def preloads(cell: Cell) -> set[str]:
    """Modules that a rank imports before the first step of ``cell``: see bench/runner/preload.py."""
    return {
        *FAMILIES[backend_of(cell).family].preloads,
        *(["torch._inductor.compile_fx"] if cell.train.compile != "none" else []),
    }


def from_accelerate_config(config: Mapping[str, JsonValue]) -> Backend:
    """The backend that a user's accelerate config describes."""
    fsdp = section(config, "fsdp_config")
    match config.get("distributed_type", "NO"):
        case "FSDP" if float(str(fsdp.get("fsdp_version", 1))) == 2:
            family, sharding = "fsdp2", "fully_shard"
        case "FSDP":
            strategy = str(fsdp.get("fsdp_sharding_strategy", "FULL_SHARD")).upper()
            family, sharding = "fsdp", SHARDING_STRATEGIES[int(strategy) - 1] if strategy.isdigit() else strategy
        case "DEEPSPEED":
            family, sharding = "deepspeed", f"zero{section(engine_of(config), 'zero_optimization')['stage']}"
        case "MULTI_GPU":
            family, sharding = "ddp", "none"
        case _:
            family, sharding = "single", "none"
    return Backend(family=family, sharding=sharding, config=config, about="your own accelerate config")  # type: ignore[arg-type]


def engine_of(config: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """The DeepSpeed config that accelerate makes of a user's: its JSON file, or the fields of its own section."""
    given = section(config, "deepspeed_config")
    if "deepspeed_config_file" in given:
        engine = section(given, "deepspeed_config_file")
        zero = section(engine, "zero_optimization")
        stage = zero.get("stage", 0)
        return {**engine, "zero_optimization": {**zero, "stage": DEFAULT_STAGE if stage == "auto" else stage}}
    offload: dict[str, JsonValue] = {
        f"offload_{part}": {"device": given.get(f"offload_{part}_device")} for part in ("optimizer", "param")
    }
    return {
        "zero_optimization": {"stage": given.get("zero_stage", DEFAULT_STAGE), **offload},
        "gradient_clipping": given.get("gradient_clipping")
        or ("auto" if given.get("gradient_clipping") is None else 0),
    }


def is_on(value: JsonValue) -> bool:
    """A switch of an accelerate config, as accelerate reads it."""
    return str(value).lower() in ("y", "yes", "t", "true", "on", "1")


def section(config: Mapping[str, JsonValue], key: str) -> Mapping[str, JsonValue]:
    """A section of an accelerate config; empty if there is none."""
    section = config.get(key)
    return section if isinstance(section, dict) else {}
