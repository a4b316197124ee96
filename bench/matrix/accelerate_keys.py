"""The keys of accelerate's and DeepSpeed's config files, and which of them each kind of backend reads.

As in accelerate 1.15 and DeepSpeed 0.19; tests/matrix/test_accelerate_keys.py compares them with what is installed.
"""

from collections.abc import Mapping

from bench.backends import Family

TOP = frozenset(
    """
    command_file commands compute_environment debug deepspeed_config distributed_type downcast_bf16 dynamo_config
    enable_cpu_affinity fp8_config fsdp_config gpu_ids machine_rank main_process_ip main_process_port
    main_training_function megatron_lm_config mixed_precision mpirun_config num_machines num_processes
    parallelism_config rdzv_backend same_network tpu_env tpu_name tpu_use_cluster tpu_use_sudo tpu_vm tpu_zone use_cpu
    dynamo_backend fp16
    """.split()
)
"""accelerate rejects any other; it still reads the last two, of older versions."""

FSDP = frozenset(
    f"fsdp_{word}"
    for word in """
    activation_checkpointing activation_checkpointing_offload auto_wrap_policy backward_prefetch
    cpu_ram_efficient_loading forward_prefetch ignored_modules min_num_params offload_params reshard_after_forward
    sharding_strategy state_dict_type sync_module_states transformer_layer_cls_to_wrap use_orig_params version
    """.split()
)
"""What accelerate launch hands to its ranks."""

DEEPSPEED = frozenset(
    """
    deepspeed_config_file deepspeed_exclusion_filter deepspeed_hostfile deepspeed_inclusion_filter
    deepspeed_moe_layer_cls_names deepspeed_multinode_launcher gradient_accumulation_steps gradient_clipping
    offload_optimizer_device offload_optimizer_nvme_path offload_param_device offload_param_nvme_path zero3_init_flag
    zero3_save_16bit_model zero_stage
    """.split()
)

BESIDE_NO_FILE = (
    "gradient_accumulation_steps",
    "gradient_clipping",
    "zero_stage",
    "offload_optimizer_device",
    "offload_param_device",
    "offload_param_nvme_path",
    "offload_optimizer_nvme_path",
    "zero3_save_16bit_model",
)
"""accelerate raises an error if one of these, or mixed_precision, stands beside deepspeed_config_file."""

PARALLELISM = frozenset(
    f"parallelism_config_{word}"
    for word in """
    cp_backend cp_comm_strategy cp_size dp_replicate_size dp_shard_size sp_attn_implementation sp_backend sp_seq_length
    sp_seq_length_is_variable sp_size tp_size
    """.split()
)

ENGINE = frozenset(
    """
    activation_checkpointing aio amp autotuning bf16 bfloat16 checkpoint comms_logger communication_data_type comet
    compile compression_training csv_monitor curriculum_learning data_efficiency data_types dataloader_drop_last
    disable_allgather disable_python_gc dump_state elasticity expert_parallel flops_profiler fp16
    gradient_accumulation_steps gradient_allreduce_op gradient_clipping gradient_predivide_factor hybrid_engine
    log_level managed_gradient_accumulation memory_breakdown nebula optimizer pipeline prescale_gradients scheduler
    seq_parallel_communication_data_type sequence_parallel_size sparse_gradients steps_per_print tensor_parallel
    tensorboard timers torch_autocast train_batch_size train_micro_batch_size_per_gpu
    use_data_before_expert_parallelism vocabulary_size wall_clock_breakdown wandb weight_quantization
    zero_allow_untested_optimizer zero_force_ds_cpu_optimizer zero_optimization
    """.split()
)
"""DeepSpeed ignores any other, without a word."""

ZERO = frozenset(
    """
    allgather_bucket_size allgather_partitions allgather_sequential compute_grad_norm contiguous_gradients cpu_offload
    cpu_offload_param cpu_offload_use_pin_memory elastic_checkpoint enable_sanity_checks
    gather_16bit_weights_on_model_save ignore_unused_parameters leaf_module legacy_stage1 load_from_fp32_weights
    log_trace_cache_warnings max_live_parameters max_reuse_distance memory_efficient_linear model_persistence_threshold
    module_granularity_threshold offload_optimizer offload_param overlap_comm override_module_apply
    param_persistence_threshold parameter_alignment pipeline_loading_checkpoint prefetch_bucket_size reduce_bucket_size
    reduce_scatter round_robin_gradients save_muon_momentum_buffer_in_memory stage stage3_allgather_sequential
    stage3_gather_16bit_weights_on_model_save stage3_gather_fp16_weights_on_model_save stage3_max_live_parameters
    stage3_max_reuse_distance stage3_model_persistence_threshold stage3_module_granularity_threshold
    stage3_param_persistence_threshold stage3_prefetch_bucket_size stage3_use_all_reduce_for_fetch_params
    sub_group_size use_all_reduce_for_fetch_params use_multi_rank_bucket_allreduce zenflow zero_hpz_partition_size
    zero_quantized_gradients zero_quantized_nontrainable_weights zero_quantized_weights
    """.split()
)
"""DeepSpeed raises an error for any other, once the ranks have started."""

AUTO = frozenset(
    """
    train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps gradient_clipping bf16.enabled
    fp16.enabled zero_optimization.stage zero_optimization.offload_optimizer.device
    zero_optimization.offload_optimizer.nvme_path zero_optimization.offload_param.device
    zero_optimization.offload_param.nvme_path zero_optimization.stage3_gather_16bit_weights_on_model_save
    zero_optimization.reduce_bucket_size zero_optimization.stage3_prefetch_bucket_size
    zero_optimization.stage3_param_persistence_threshold optimizer.params.lr optimizer.params.weight_decay
    scheduler.params.warmup_min_lr scheduler.params.warmup_max_lr scheduler.params.warmup_num_steps
    scheduler.params.total_num_steps
    """.split()
)
"""The fields whose ``auto`` accelerate replaces; for any other it raises an error. Trainer replaces more."""

_HYBRID = "parallelism_config shards within groups of ranks"
_FULL = "fsdp_reshard_after_forward: false keeps weights gathered"

IGNORED_FSDP: Mapping[Family, Mapping[str, str]] = {
    "fsdp": {
        "fsdp_reshard_after_forward": "set fsdp_sharding_strategy, which has the strategies of version 1",
        "fsdp_limit_all_gathers": "torch limits them by default",
        "fsdp_backward_prefetch_policy": "set fsdp_backward_prefetch",
    },
    "fsdp2": {
        "fsdp_sharding_strategy": f"{_FULL}, and {_HYBRID}",
        "fsdp_limit_all_gathers": "version 2 always limits them",
        "fsdp_backward_prefetch_policy": "version 2 always prefetches in backward",
        "fsdp_backward_prefetch": "version 2 always prefetches in backward",
        "fsdp_forward_prefetch": "version 2 does it by itself",
        "fsdp_use_orig_params": "version 2 always has the original parameters",
        "fsdp_sync_module_states": "version 2 needs none",
    },
}
"""Keys that are written for FSDP and that accelerate does not read for it, with what to do instead."""

FSDP_VALUES: Mapping[str, tuple[str, ...]] = {
    "fsdp_auto_wrap_policy": ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"),
    "fsdp_backward_prefetch": ("BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"),
    "fsdp_state_dict_type": ("FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT"),
}
"""For others, ranks fail once they have started."""

FSDP_SWITCHES = (
    "fsdp_cpu_ram_efficient_loading",
    "fsdp_forward_prefetch",
    "fsdp_offload_params",
    "fsdp_sync_module_states",
    "fsdp_use_orig_params",
)
TRUTHS = ("y", "yes", "t", "true", "on", "1", "n", "no", "f", "false", "off", "0", "none")
"""What accelerate reads as true or false, in lower case."""

ENGINE_OPTIMIZERS = frozenset("adagrad adam adamw lamb lion muadam muadamw muon musgd".split())
"""In lower case. DeepSpeed also takes the classes of torch.optim, by their own names."""
TORCH_OPTIMIZERS = frozenset(
    """
    ASGD Adadelta Adafactor Adagrad Adam AdamW Adamax LBFGS Muon NAdam Optimizer RAdam RMSprop Rprop SGD SparseAdam
    """.split()
)

WRAPS_BY: Mapping[str, str] = {
    "fsdp_transformer_layer_cls_to_wrap": "TRANSFORMER_BASED_WRAP",
    "fsdp_min_num_params": "SIZE_BASED_WRAP",
}
"""Keys that one value of fsdp_auto_wrap_policy reads."""

IGNORED_TOP: Mapping[str, str] = {
    **dict.fromkeys(("tpu_name", "tpu_zone", "tpu_env", "tpu_vm", "tpu_use_cluster", "tpu_use_sudo"), "it is for TPUs"),
    **dict.fromkeys(("downcast_bf16", "commands", "command_file"), "it is for TPUs"),
    "megatron_lm_config": "distributed_type is not MEGATRON_LM",
    "fp8_config": "mixed_precision is not fp8",
}
"""Keys that accelerate reads for distributed types or precisions that bench does not run."""
