"""Sixty accelerate configs in the styles that people publish, and what bench must do with each.

Each is written for this test. The styles are those of accelerate's documentation and its questionnaire, and of the
configs of TRL, axolotl, LLaMA-Factory and the alignment handbook.
"""

import json
from dataclasses import dataclass
from typing import Any

import yaml

EQUAL = ""


@dataclass(frozen=True)
class Own:
    """One config, and what bench must do with it."""

    kind: str
    config: dict[str, Any]
    engine: dict[str, Any] | None = None
    """Of its DeepSpeed JSON file."""
    says: str = EQUAL
    """Empty: it runs as in a plain loop. Else: part of the reason why it does not run."""
    late: bool = False
    """Only the model shows why: set-up fails, as in the plain loop."""
    factory: str = "blocks"
    precision: str | None = None
    """``launch.mixed_precision`` of the matrix, and ``--mixed_precision`` of accelerate launch."""
    ranks: int = 2
    in_test: bool = False
    """Compared in `make test` too."""

    @property
    def distributed_type(self) -> str:
        return str(self.config["distributed_type"])

    def files(self) -> dict[str, str]:
        named = {} if self.engine is None else {"deepspeed_config": {"deepspeed_config_file": "ds.json"}}
        written = {"own.yaml": yaml.safe_dump({**named, **self.config}, sort_keys=False)}
        return written if self.engine is None else {**written, "ds.json": json.dumps(self.engine, indent=2)}


QUESTIONS = {
    "compute_environment": "LOCAL_MACHINE",
    "debug": False,
    "downcast_bf16": "no",
    "enable_cpu_affinity": False,
    "machine_rank": 0,
    "main_training_function": "main",
    "num_machines": 1,
    "num_processes": 8,
    "rdzv_backend": "static",
    "same_network": True,
    "tpu_env": [],
    "tpu_use_cluster": False,
    "tpu_use_sudo": False,
    "use_cpu": False,
}
"""What accelerate's questionnaire writes into each file."""
CPU = {"fsdp_cpu_ram_efficient_loading": False, "fsdp_sync_module_states": False}
"""Without a GPU, version 1 needs these."""


def plain(**fields: Any) -> dict[str, Any]:
    return {**QUESTIONS, "distributed_type": "MULTI_GPU", "gpu_ids": "all", "mixed_precision": "bf16", **fields}


def fsdp1(precision: str | None = "bf16", **fields: Any) -> dict[str, Any]:
    section = {
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_sharding_strategy": "FULL_SHARD",
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        **CPU,
        **fields,
    }
    return {**QUESTIONS, "distributed_type": "FSDP", "mixed_precision": precision, "fsdp_config": section}


def fsdp2(precision: str | None = "bf16", top: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    section = {
        "fsdp_version": 2,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_reshard_after_forward": True,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_cpu_ram_efficient_loading": False,
        **fields,
    }
    return {
        **QUESTIONS,
        "distributed_type": "FSDP",
        "mixed_precision": precision,
        "fsdp_config": section,
        **(top or {}),
    }


def inline(precision: str | None = "bf16", **fields: Any) -> dict[str, Any]:
    section = {"gradient_accumulation_steps": 1, "zero3_init_flag": False, "zero_stage": 2, **fields}
    return {**QUESTIONS, "distributed_type": "DEEPSPEED", "mixed_precision": precision, "deepspeed_config": section}


FILE = {**QUESTIONS, "distributed_type": "DEEPSPEED"}
BATCHES = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
}
MICRO = {"train_micro_batch_size_per_gpu": "auto"}
AUTO_PRECISION = {
    "bf16": {"enabled": "auto"},
    "fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16},
}
HOST = {"device": "cpu", "pin_memory": False}
STAGE_2 = {
    "stage": 2,
    "allgather_partitions": True,
    "allgather_bucket_size": 2e6,
    "overlap_comm": True,
    "reduce_scatter": True,
    "reduce_bucket_size": 2e6,
    "contiguous_gradients": True,
}
STAGE_3 = {
    "stage": 3,
    "overlap_comm": True,
    "contiguous_gradients": True,
    "sub_group_size": 1e6,
    "reduce_bucket_size": "auto",
    "stage3_prefetch_bucket_size": "auto",
    "stage3_param_persistence_threshold": "auto",
    "stage3_max_live_parameters": 1e6,
    "stage3_max_reuse_distance": 1e6,
    "stage3_gather_16bit_weights_on_model_save": True,
}
ADAMW = {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}}
WARMUP = {"type": "WarmupLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto"}}
DECAY = {"type": "WarmupDecayLR", "params": {**WARMUP["params"], "total_num_steps": "auto"}}
DATA = {"parallelism_config_tp_size": 1, "parallelism_config_cp_size": 1}


def sizes(replicate: int, shard: int) -> dict[str, Any]:
    ours = {"parallelism_config_dp_replicate_size": replicate, "parallelism_config_dp_shard_size": shard}
    return {"parallelism_config": {**ours, **DATA}}


def zero(stage: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {**AUTO_PRECISION, "zero_optimization": stage, **BATCHES, **fields}


CONFIGS = [
    # one process, and DDP
    Own("questionnaire, one process", {**plain(), "distributed_type": "NO", "num_processes": 1}, ranks=1),
    Own("one process, no precision", {"distributed_type": "NO", "num_processes": 1, "use_cpu": True}, ranks=1),
    Own("questionnaire, MULTI_GPU, bf16", plain(), in_test=True),
    Own("MULTI_GPU, precision no", plain(mixed_precision="no")),
    Own("MULTI_GPU, no precision, --mixed_precision bf16", {**plain(), "mixed_precision": None}, precision="bf16"),
    Own("MULTI_GPU with fields of several nodes", plain(main_process_ip="10.0.0.1", main_process_port=29501)),
    Own("MULTI_GPU with empty sections", plain(fsdp_config={}, deepspeed_config={}, megatron_lm_config={})),
    Own("MULTI_GPU, debug and CPU affinity", plain(debug=True, enable_cpu_affinity=True)),
    Own("MULTI_GPU, dynamo off", plain(dynamo_backend="NO")),
    Own("MULTI_GPU, dynamo", plain(dynamo_config={"dynamo_backend": "INDUCTOR"}), says="compilation belongs in"),
    Own("MULTI_GPU, fp8", plain(mixed_precision="fp8", fp8_config={"backend": "TE"}), says="'fp8' is not supported"),
    Own("MULTI_GPU, two machines", plain(num_machines=2, machine_rank=1), says="--launcher slurm"),
    Own("MULTI_CPU", {**plain(), "distributed_type": "MULTI_CPU"}, says="starts only one process"),
    Own("TPU", {**plain(), "distributed_type": "XLA"}, says="'XLA' is not supported"),
    # FSDP1
    Own("FSDP1, questionnaire", fsdp1(fsdp_version=1, fsdp_use_orig_params=True), in_test=True),
    Own("FSDP1, classes named", fsdp1(fsdp_transformer_layer_cls_to_wrap="Block", fsdp_forward_prefetch=False)),
    Own("FSDP1, backward prefetch", fsdp1(fsdp_backward_prefetch="BACKWARD_PRE", fsdp_use_orig_params=True)),
    Own("FSDP1, old name of prefetch", fsdp1(fsdp_backward_prefetch_policy="BACKWARD_PRE")),
    Own("FSDP1, strategy 1", fsdp1(fsdp_sharding_strategy=1, fsdp_offload_params=False)),
    Own("FSDP1, SHARD_GRAD_OP", fsdp1(fsdp_sharding_strategy="SHARD_GRAD_OP", fsdp_backward_prefetch="BACKWARD_POST")),
    Own("FSDP1, strategy of version 2's field", fsdp1(fsdp_reshard_after_forward="SHARD_GRAD_OP")),
    Own("FSDP1, NO_SHARD", fsdp1(fsdp_sharding_strategy="NO_SHARD")),
    Own("FSDP1, HYBRID_SHARD", fsdp1(fsdp_sharding_strategy="HYBRID_SHARD"), says="shards nothing"),
    Own("FSDP1, by size", fsdp1(fsdp_auto_wrap_policy="SIZE_BASED_WRAP", fsdp_min_num_params=300)),
    Own("FSDP1, no wrap", fsdp1(fsdp_auto_wrap_policy="NO_WRAP")),
    Own("FSDP1, a model without classes", fsdp1(), factory="bare"),
    Own("FSDP1, precision no", fsdp1("no", fsdp_use_orig_params=True)),
    Own("FSDP1, default loading", fsdp1(**dict.fromkeys(CPU, True)), says="through a GPU"),
    Own("FSDP1, offload", fsdp1(fsdp_offload_params=True), says="for a GPU"),
    Own("FSDP1, checkpointing", fsdp1(fsdp_activation_checkpointing=True), says="belongs in the matrix"),
    Own("FSDP1, parallelism_config", {**fsdp1(), **sizes(1, 2)}, says="fsdp_version 2"),
    # FSDP2
    Own("FSDP2, questionnaire", fsdp2()),
    Own("FSDP2, efficient loading", fsdp2(fsdp_cpu_ram_efficient_loading=True)),
    Own("FSDP2, no reshard", fsdp2(fsdp_reshard_after_forward=False)),
    Own("FSDP2 with keys of version 1", fsdp2(fsdp_sharding_strategy="HYBRID_SHARD", fsdp_limit_all_gathers=True)),
    Own("FSDP2, a model without classes", fsdp2(), factory="bare"),
    Own("FSDP2, precision no", fsdp2("no", fsdp_transformer_layer_cls_to_wrap="Block")),
    Own("FSDP2, no precision, --mixed_precision bf16", fsdp2(None), precision="bf16"),
    Own("FSDP2, offload", fsdp2(fsdp_offload_params=True), says="for a GPU"),
    Own("FSDP2, sizes all 1", fsdp2(top=sizes(1, 1))),
    Own("FSDP2, dp_shard 2", fsdp2(top=sizes(1, 2)), in_test=True),
    Own("FSDP2, dp_replicate 2 alone", fsdp2(top=sizes(2, 1)), says="no ranks to shard across"),
    Own("FSDP2, 2 x 2 on two ranks", fsdp2(top=sizes(2, 2)), says="make 4 ranks"),
    Own("FSDP2, 2 x 2", fsdp2(top=sizes(2, 2)), ranks=4),
    Own(
        "FSDP2, tensor parallel",
        fsdp2(top={"parallelism_config": {**DATA, "parallelism_config_tp_size": 2}}),
        says="tensor",
    ),
    # DeepSpeed, inline
    Own("ZeRO-1 inline", inline(zero_stage=1, deepspeed_multinode_launcher="standard")),
    Own("ZeRO-2 inline, clipping", inline(gradient_clipping=0.01, offload_optimizer_device="none"), in_test=True),
    Own("ZeRO-3 inline, init flag", inline(zero_stage=3, zero3_init_flag=True, zero3_save_16bit_model=True)),
    Own("ZeRO-2 inline, optimizer offload", inline(offload_optimizer_device="cpu", offload_param_device="none")),
    Own(
        "ZeRO-3 inline, offload of both",
        inline(zero_stage=3, offload_optimizer_device="cpu", offload_param_device="cpu"),
    ),
    Own("ZeRO-2 inline, precision no", inline("no")),
    Own("ZeRO-2 inline, accumulation", inline(gradient_accumulation_steps=4)),
    Own("ZeRO-1 inline, accumulation", inline("no", zero_stage=1, gradient_accumulation_steps=2)),
    Own(
        "ZeRO inline, accumulation auto", inline(gradient_accumulation_steps="auto"), says="a whole number, at least 1"
    ),
    # DeepSpeed, JSON
    Own("ZeRO-0 JSON", FILE, zero({"stage": 0}), precision="bf16"),
    Own("ZeRO-1 JSON", FILE, zero({"stage": 1, "overlap_comm": True}), precision="bf16"),
    Own("ZeRO-2 JSON, auto precision", FILE, zero(STAGE_2), precision="bf16", in_test=True),
    Own("ZeRO-2 JSON, auto precision, none requested", FILE, zero(STAGE_2)),
    Own("ZeRO-2 JSON, bf16 in the file", FILE, {**zero(STAGE_2), "bf16": {"enabled": True}, "gradient_clipping": 0.5}),
    Own(
        "JSON, auto stage, no clipping",
        FILE,
        {**MICRO, "zero_optimization": {"stage": "auto"}, "bf16": {"enabled": True}},
    ),
    Own("ZeRO-3 JSON, accumulation", FILE, {**zero(STAGE_3), "gradient_accumulation_steps": 2}, precision="bf16"),
    Own("ZeRO-3 JSON, auto buckets", FILE, zero(STAGE_3), precision="bf16", in_test=True),
    Own(
        "ZeRO-3 JSON, auto buckets, no config",
        FILE,
        zero(STAGE_3),
        precision="bf16",
        factory="bare",
        says="model.config",
        late=True,
    ),
    Own("ZeRO-2 JSON, offload", FILE, zero({**STAGE_2, "offload_optimizer": HOST}), precision="bf16"),
    Own(
        "ZeRO-3 JSON, offload of both",
        FILE,
        zero({**STAGE_3, "offload_optimizer": HOST, "offload_param": HOST}),
        precision="bf16",
    ),
    Own("JSON, optimizer", FILE, zero(STAGE_2, optimizer=ADAMW), precision="bf16"),
    Own("JSON, optimizer and scheduler", FILE, zero(STAGE_2, optimizer=ADAMW, scheduler=WARMUP), precision="bf16"),
    Own("ZeRO-3 JSON, decay", FILE, zero(STAGE_3, optimizer=ADAMW, scheduler=DECAY), precision="bf16"),
    Own(
        "JSON, optimizer offloaded",
        FILE,
        zero({**STAGE_2, "offload_optimizer": HOST}, optimizer=ADAMW),
        precision="bf16",
    ),
    Own(
        "JSON, optimizer with numbers",
        FILE,
        zero(STAGE_2, optimizer={"type": "Adam", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-7}}),
        precision="bf16",
    ),
    Own(
        "JSON, torch's Adam",
        FILE,
        zero(STAGE_2, optimizer={"type": "Adam", "params": {"lr": "auto", "torch_adam": True, "adam_w_mode": True}}),
        precision="bf16",
    ),
    Own(
        "JSON, weights offloaded under ZeRO-2",
        FILE,
        zero({**STAGE_2, "offload_param": HOST}),
        precision="bf16",
        says="under ZeRO-3 only",
    ),
    Own("JSON, scheduler alone", FILE, zero(STAGE_2, scheduler=WARMUP), precision="bf16"),
    Own(
        "JSON, betas auto",
        FILE,
        zero(STAGE_2, optimizer={"type": "AdamW", "params": {"lr": "auto", "betas": "auto"}}),
        says="only by the Trainer",
    ),
    Own("JSON, precision in both files", {**FILE, "mixed_precision": "bf16"}, zero(STAGE_2), says="beside"),
    Own("JSON, fp16", FILE, {**zero(STAGE_2), "fp16": {"enabled": True}}, says="fp16 is not supported"),
    Own("JSON, a typo", FILE, zero({**STAGE_2, "overlap_com": True}), says="did you mean 'overlap_comm'?"),
]
