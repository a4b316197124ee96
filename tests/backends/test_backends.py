"""What each backend asks accelerate for, what it forbids, and the regime that proves it ran."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from examples import cell

from bench import backends
from bench.backends import BACKENDS
from bench.launch import attempt_files
from bench.records.base import Device
from bench.records.cell import Attempt, Cell, Train
from bench.records.machine import Hardware
from bench.records.script import Script

CPU = Hardware(device="cpu", devices=0, cores=8, memory_bytes=2**34)
GPUS = Hardware(device="cuda", devices=2, cores=16, memory_bytes=2**36)
UNITS = ("Layer", "VisionLayer")
TWO_RANKS = [name for name in BACKENDS if name != "single"]


def of(backend: str, **changes: Any) -> Cell:
    return cell(backend, **({"num_processes": 1} if backend == "single" else {}) | changes)


def own(config: dict[str, Any], **changes: Any) -> Cell:
    return cell("mine", accelerate=config, **changes)


def parsed(cell_: Cell, folder: Path, device: Device = "cpu") -> Any:
    """The config as accelerate reads it from the prepared file."""
    attempt = Attempt(cell=cell_, batch_per_rank=1)
    file = folder / "accelerate.yaml"
    file.write_text(attempt_files.files(attempt, UNITS, device, {}, str(folder))["accelerate.yaml"])
    return load_config_from_file(str(file))


# --- the accelerate config ------------------------------------------------------------------------------------------

TYPES = {
    "single": "NO",
    "ddp": "MULTI_GPU",
    "fsdp": "FSDP",
    "fsdp_grad_op": "FSDP",
    "fsdp2": "FSDP",
    "zero1": "DEEPSPEED",
    "zero2": "DEEPSPEED",
    "zero3": "DEEPSPEED",
}


@pytest.mark.parametrize("command", [None, ("python", "train.py", "{batch}", "{accelerate_config}")])
def test_the_config_leaves_the_micro_batches_to_the_program(command: tuple[str, ...] | None) -> None:
    """accelerate prefers the value of DeepSpeed's section to that of `Accelerator(gradient_accumulation_steps=4)`."""
    script = None if command is None else Script(command=command)
    attempt = Attempt(cell=of("zero2", script=script, train={"global_batch": 32}), batch_per_rank=4)
    assert "gradient_accumulation" not in attempt_files.files(attempt, UNITS, "cuda", {}, "/there")["accelerate.yaml"]


@pytest.mark.parametrize("precision", ["bf16", "no"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_accelerate_reads_what_was_meant(backend: str, precision: str, tmp_path: Path) -> None:
    config = parsed(of(backend, mixed_precision=precision), tmp_path)
    assert config.distributed_type == TYPES[backend]
    assert config.mixed_precision == precision
    assert config.num_processes == (1 if backend == "single" else 2)
    assert config.num_machines == 1
    assert config.use_cpu is (backend == "single")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_gpu_is_never_left_unused(backend: str, tmp_path: Path) -> None:
    assert parsed(of(backend), tmp_path, "cuda").use_cpu is False


def test_a_config_on_a_cpu_is_that_of_a_gpu() -> None:
    for backend in TWO_RANKS:
        assert backends.accelerate_config(of(backend), UNITS, "cpu") == backends.accelerate_config(
            of(backend), UNITS, "cuda"
        )


@pytest.mark.parametrize(
    ("backend", "section", "wanted"),
    [
        ("fsdp", "fsdp_config", {"fsdp_version": 1, "fsdp_sharding_strategy": "FULL_SHARD"}),
        ("fsdp_grad_op", "fsdp_config", {"fsdp_version": 1, "fsdp_sharding_strategy": "SHARD_GRAD_OP"}),
        ("fsdp2", "fsdp_config", {"fsdp_version": 2, "fsdp_reshard_after_forward": True}),
        ("zero1", "deepspeed_config", {"zero_stage": 1}),
        ("zero2", "deepspeed_config", {"zero_stage": 2}),
        ("zero3", "deepspeed_config", {"zero_stage": 3, "zero3_init_flag": False}),
    ],
)
def test_the_section_of_its_own(backend: str, section: str, wanted: dict[str, Any], tmp_path: Path) -> None:
    config = getattr(parsed(of(backend, train=Train(max_grad_norm=2.5)), tmp_path), section)
    assert wanted.items() <= config.items()
    if section == "fsdp_config":
        assert config["fsdp_transformer_layer_cls_to_wrap"] == "Layer,VisionLayer"
        assert config["fsdp_auto_wrap_policy"] == "TRANSFORMER_BASED_WRAP"
    else:
        assert config["gradient_clipping"] == 2.5


@pytest.mark.parametrize(
    ("backend", "train", "wanted"),
    [
        ("fsdp", {"offload": "params"}, {"fsdp_offload_params": True}),
        ("fsdp2", {"reshard_after_forward": False}, {"fsdp_reshard_after_forward": False}),
        ("fsdp2", {"reshard_after_forward": 2}, {"fsdp_reshard_after_forward": True}),  # the runner sets the number
        ("zero2", {"offload": "optimizer"}, {"offload_optimizer_device": "cpu", "offload_param_device": "none"}),
        ("zero3", {"offload": "params"}, {"offload_optimizer_device": "cpu", "offload_param_device": "cpu"}),
    ],
)
def test_options_of_sharding(backend: str, train: dict[str, Any], wanted: dict[str, Any], tmp_path: Path) -> None:
    config = parsed(of(backend, **option(**train)), tmp_path)
    assert wanted.items() <= (config.fsdp_config or config.deepspeed_config).items()


@pytest.mark.parametrize("backend", ["fsdp", "fsdp2"])
def test_units_that_are_not_known_yet_are_left_to_the_runner(backend: str) -> None:
    named = "fsdp_transformer_layer_cls_to_wrap"
    for units in (None, ()):
        config = backends.accelerate_config(of(backend, **option(offload="params")), units, "cpu")["fsdp_config"]
        assert named not in config
        assert config["fsdp_offload_params"] is True
    assert backends.accelerate_config(of(backend), UNITS, "cpu")["fsdp_config"][named] == "Layer,VisionLayer"


def test_own_config_keeps_its_own_settings_and_accelerate_finds_the_units(tmp_path: Path) -> None:
    mine = {
        "distributed_type": "FSDP",
        "num_processes": 8,
        "mixed_precision": "no",
        "fsdp_config": {"fsdp_transformer_layer_cls_to_wrap": "Mine", "fsdp_offload_params": True},
    }
    config = parsed(own(mine), tmp_path)
    assert config.fsdp_config == mine["fsdp_config"]
    assert (config.num_processes, config.mixed_precision) == (2, "bf16")
    without = {"distributed_type": "FSDP", "fsdp_config": {"fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}}
    assert parsed(own(without), tmp_path).fsdp_config == without["fsdp_config"]


def test_own_deepspeed_json_is_told_nothing_twice(tmp_path: Path) -> None:
    engine = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}, "gradient_clipping": 3.0}
    config = {"distributed_type": "DEEPSPEED", "deepspeed_config": {"deepspeed_config_file": engine}}
    files = attempt_files.files(Attempt(cell=own(config), batch_per_rank=1), UNITS, "cpu", {}, str(tmp_path))
    written = yaml.safe_load(files["accelerate.yaml"])
    assert "mixed_precision" not in written
    assert written["deepspeed_config"] == {"deepspeed_config_file": f"{tmp_path}/deepspeed.json"}
    assert json.loads(files["deepspeed.json"]) == engine


def test_auto_in_a_deepspeed_json_is_what_the_matrix_says(tmp_path: Path) -> None:
    engine = {"zero_optimization": {"stage": "auto"}, "bf16": {"enabled": "auto"}, "gradient_clipping": "auto"}
    config = {"distributed_type": "DEEPSPEED", "deepspeed_config": {"deepspeed_config_file": engine}}
    for precision, clipping in (("bf16", 0.5), ("no", None)):
        mine = own(config, mixed_precision=precision, **option(max_grad_norm=clipping))
        files = attempt_files.files(Attempt(cell=mine, batch_per_rank=1), UNITS, "cpu", {}, str(tmp_path))
        written = json.loads(files["deepspeed.json"])
        assert written["bf16"]["enabled"] is (precision == "bf16")
        assert written["gradient_clipping"] == (clipping or 0)
        assert backends.backend_of(mine).sharding == "zero2"  # accelerate's default


def test_making_a_config_changes_no_entry() -> None:
    before = {name: yaml.safe_dump(dict(backend.config)) for name, backend in BACKENDS.items()}
    for name in BACKENDS:
        backends.accelerate_config(of(name), UNITS, "cpu")
    assert before == {name: yaml.safe_dump(dict(backend.config)) for name, backend in BACKENDS.items()}


# --- an accelerate config of one's own ------------------------------------------------------------------------------


def fsdp(**section: object) -> dict[str, object]:
    return {"distributed_type": "FSDP", "fsdp_config": section}


def deepspeed(**section: object) -> dict[str, object]:
    return {"distributed_type": "DEEPSPEED", "deepspeed_config": section}


@pytest.mark.parametrize(
    ("config", "family", "sharding"),
    [
        ({}, "single", "none"),
        ({"distributed_type": "NO"}, "single", "none"),
        ({"distributed_type": "MULTI_GPU"}, "ddp", "none"),
        ({"distributed_type": "FSDP"}, "fsdp", "FULL_SHARD"),
        (fsdp(), "fsdp", "FULL_SHARD"),
        (fsdp(fsdp_sharding_strategy="HYBRID_SHARD"), "fsdp", "HYBRID_SHARD"),
        (fsdp(fsdp_sharding_strategy=1), "fsdp", "FULL_SHARD"),
        (fsdp(fsdp_sharding_strategy=2), "fsdp", "SHARD_GRAD_OP"),
        (fsdp(fsdp_sharding_strategy="3"), "fsdp", "NO_SHARD"),
        (fsdp(fsdp_sharding_strategy=4), "fsdp", "HYBRID_SHARD"),
        (fsdp(fsdp_sharding_strategy=5), "fsdp", "HYBRID_SHARD_ZERO2"),
        (fsdp(fsdp_version=1, fsdp_sharding_strategy="SHARD_GRAD_OP"), "fsdp", "SHARD_GRAD_OP"),
        (fsdp(fsdp_version=2), "fsdp2", "fully_shard"),
        (fsdp(fsdp_version="2", fsdp_sharding_strategy="NO_SHARD"), "fsdp2", "fully_shard"),
        (deepspeed(), "deepspeed", "zero2"),
        (deepspeed(zero_stage=3), "deepspeed", "zero3"),
        (deepspeed(deepspeed_config_file={"zero_optimization": {"stage": 1}}), "deepspeed", "zero1"),
        (deepspeed(zero_stage=3, deepspeed_config_file={"zero_optimization": {"stage": 0}}), "deepspeed", "zero0"),
    ],
)
def test_own_configs_are_known_for_what_they_are(config: dict[str, Any], family: str, sharding: str) -> None:
    backend = backends.backend_of(own(config))
    assert (backend.family, backend.sharding) == (family, sharding)


def test_a_name_of_ones_own_does_not_hide_a_built_in_one() -> None:
    assert backends.backend_of(of("zero1")) is BACKENDS["zero1"]


def test_sharding_strategies_are_numbered_as_in_torch() -> None:
    from torch.distributed.fsdp import ShardingStrategy

    for strategy in ShardingStrategy:
        numbered = backends.backend_of(own(fsdp(fsdp_sharding_strategy=strategy.value))).sharding
        assert numbered == strategy.name.removeprefix("_")


# --- what cannot run ------------------------------------------------------------------------------------------------

CKPT = {"options": {"grad_ckpt": True}}
NO_OPTIMIZER = {"train": Train(optimizer="none")}
NO_MASTERS = {"train": Train(master_weights=False)}
LOW = {"train": Train(weights="bf16")}
ALONE = {"num_processes": 1}


def option(**train: Any) -> dict[str, Any]:
    return {"train": Train(**train)}


@pytest.mark.parametrize(
    ("backend", "changes", "device", "says"),
    [
        *((backend, CKPT, device, None) for backend in BACKENDS for device in ("cpu", "cuda")),
        *((backend, NO_OPTIMIZER, "cuda", "needs an optimizer") for backend in ("zero1", "zero2", "zero3")),
        *((backend, NO_OPTIMIZER, "cuda", None) for backend in ("single", "ddp", "fsdp", "fsdp2")),
        *((backend, ALONE, device, None) for backend in BACKENDS for device in ("cpu", "cuda")),
        *((backend, NO_MASTERS, "cpu", "keeps its own fp32") for backend in ("fsdp", "fsdp2", "zero1", "zero3")),
        *((backend, {**NO_MASTERS, "mixed_precision": "no"}, "cpu", None) for backend in BACKENDS),
        ("fsdp2", option(reshard_after_forward=False), "cuda", None),
        ("fsdp2", option(dp_replicate_size=2), "cuda", None),
        ("fsdp2", option(dp_replicate_size=3), "cuda", "2 ranks cannot be split into 3 equal groups"),
        ("fsdp2", option(reshard_after_forward=2), "cuda", "`true` means all"),
        ("fsdp2", {**option(reshard_after_forward=2), "num_processes": 4}, "cuda", None),
        ("fsdp2", {**option(reshard_after_forward=3), "num_processes": 8}, "cuda", "divide the 8 ranks"),
        ("fsdp2", option(offload="optimizer"), "cuda", "together with the weights"),
        ("fsdp2", option(offload="params"), "cpu", None),
        ("fsdp", option(offload="params"), "cpu", "pins offloaded weights for a GPU"),
        ("fsdp", option(offload="params"), "cuda", None),
        ("fsdp", option(reshard_after_forward=False), "cuda", "fsdp_grad_op"),
        ("fsdp", option(dp_replicate_size=2), "cuda", "only FSDP2"),
        ("ddp", option(offload="params"), "cuda", "keeps all its state on its device"),
        ("ddp", option(zero_overlap_comm=True), "cuda", "a setting of DeepSpeed"),
        ("ddp", option(bucket_mb=4), "cuda", None),
        *((backend, option(bucket_mb=4), "cuda", "a setting of DDP") for backend in BACKENDS if backend != "ddp"),
        ("ddp", option(cpu_affinity=True), "cuda", None),
        ("ddp", option(cpu_affinity=True), "cpu", "beside their GPUs"),
        ("zero1", option(offload="optimizer", zero_overlap_comm=True), "cpu", None),
        ("zero2", option(offload="params"), "cuda", "under ZeRO-3 only"),
        ("zero3", option(offload="params"), "cpu", None),
    ],
)
def test_what_is_forbidden_says_why(backend: str, changes: dict[str, Any], device: Device, says: str | None) -> None:
    reason = backends.forbids(of(backend, **changes), device)
    assert reason is None if says is None else says in (reason or "")


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("loading", [None, True, False, "false"])
@pytest.mark.parametrize("synced", [None, True, False])
def test_own_fsdp_says_which_switches_to_set(version: int, device: Device, loading: object, synced: object) -> None:
    """tests/faults/test_refusals.py runs each combination on a CPU."""
    switches = {"fsdp_cpu_ram_efficient_loading": loading, "fsdp_sync_module_states": synced}
    config = {"fsdp_version": version} | {name: value for name, value in switches.items() if value is not None}
    reason = backends.forbids(own({"distributed_type": "FSDP", "fsdp_config": config}), device)
    loads, syncs = loading in (None, True), synced in (None, True)
    refused = (version == 1 and device == "cpu" and (loads or syncs)) or (loads and not syncs)
    assert (reason is not None) == refused
    assert reason is None or all(name in reason for name in switches)


# --- the regime that proves it --------------------------------------------------------------------------------------

CAST = {"weights_dtype": "bfloat16", "masters_dtype": "float32", "optimizer_dtype": "float32"}
SHARDS = {"weights_dtype": "float32", "masters_dtype": "float32", "optimizer_dtype": "float32"}


FSDP = {**SHARDS, "distributed_type": "FSDP", "offload": "none"}
ZERO = {**CAST, "distributed_type": "DEEPSPEED", "reduction_dtype": "bfloat16", "offload": "none"}


@pytest.mark.parametrize(
    ("backend", "regime"),
    [
        ("single", {**CAST, "distributed_type": "NO", "sharding": "none", "reduction_dtype": None}),
        ("ddp", {**CAST, "distributed_type": "MULTI_CPU", "sharding": "none", "reduction_dtype": "bfloat16"}),
        ("fsdp", {**FSDP, "sharding": "FULL_SHARD", "reduction_dtype": "bfloat16"}),
        ("fsdp_grad_op", {**FSDP, "sharding": "SHARD_GRAD_OP", "reduction_dtype": "bfloat16"}),
        (
            "fsdp2",
            {
                **FSDP,
                "sharding": "fully_shard",
                "reduction_dtype": "float32",
                "mesh": {"pp": 1, "dp": 2, "tp": 1},
                "reshard_after_forward": True,
            },
        ),
        ("zero1", {**ZERO, "sharding": "zero1", "overlap_comm": False}),
        ("zero2", {**ZERO, "sharding": "zero2", "overlap_comm": False}),
        ("zero3", {**ZERO, "sharding": "zero3", "overlap_comm": True}),
    ],
)
def test_the_regime_asked_for_in_bf16(backend: str, regime: dict[str, object]) -> None:
    world_size = 1 if backend == "single" else 2
    computed = {"world_size": world_size, "ranks_per_node": world_size, "matmul_dtype": "bfloat16"}
    assert backends.expected_regime(of(backend, **LOW), "cpu") == {**computed, **regime}


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_mixed_precision_all_is_fp32(backend: str) -> None:
    regime = backends.expected_regime(of(backend, mixed_precision="no"), "cuda")
    dtypes = {name: dtype for name, dtype in regime.items() if name.endswith("_dtype")}
    assert set(dtypes.values()) == {"float32"} | ({None} if backend == "single" else set())
    assert len(dtypes) == 5


def test_on_gpus_ddp_is_called_multi_gpu() -> None:
    assert backends.expected_regime(of("ddp"), "cuda")["distributed_type"] == "MULTI_GPU"
    assert backends.expected_regime(of("fsdp2"), "cuda")["distributed_type"] == "FSDP"


def test_without_an_optimizer_there_are_no_masters() -> None:
    regime = backends.expected_regime(of("ddp", **option(optimizer="none", weights="bf16")), "cpu")
    assert (regime["masters_dtype"], regime["optimizer_dtype"]) == (None, None)
    assert regime["weights_dtype"] == "bfloat16"


@pytest.mark.parametrize(
    ("backend", "sharding"), [("fsdp", "NO_SHARD"), ("fsdp_grad_op", "NO_SHARD"), ("fsdp2", "fully_shard")]
)
def test_a_world_of_one_shards_nothing_and_reduces_nothing(backend: str, sharding: str) -> None:
    regime = backends.expected_regime(of(backend, **ALONE), "cuda")
    assert (regime["sharding"], regime["reduction_dtype"], regime["world_size"]) == (sharding, None, 1)
    assert not backends.shards_parameters(of(backend, **ALONE))


def test_the_reduction_of_ones_own_config_is_ones_own() -> None:
    assert "reduction_dtype" not in backends.expected_regime(own(fsdp()), "cpu")


@pytest.mark.parametrize("backend", BACKENDS)
def test_only_these_split_parameters(backend: str) -> None:
    assert backends.shards_parameters(of(backend)) == (backend in ("fsdp", "fsdp_grad_op", "fsdp2", "zero3"))


@pytest.mark.parametrize("kind", ["FSDP", "DEEPSPEED"])
def test_an_own_config_may_leave_its_section_out(kind: str) -> None:
    backends.accelerate_config(own({"distributed_type": kind}), UNITS, "cpu")


def test_a_deepspeed_json_without_a_stage_is_stage_0() -> None:
    mine = own(
        {"distributed_type": "DEEPSPEED", "deepspeed_config": {"deepspeed_config_file": {"zero_optimization": {}}}}
    )
    assert backends.backend_of(mine).sharding == "zero0"
