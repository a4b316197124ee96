"""Settings of the bundled policy, and one real run of it, which several modules read.

The run has all cells of matrices/backends.yaml, and beside them cells with checkpointing and with a user's own configs.
"""

import json
from pathlib import Path

import yaml
from harness import ROOT
from kept import KeptBench

from bench.records.outcome import Result

OPTIONAL_PARTS = {
    "name": "pi07",
    "preset": "tiny",
    "n_layers": 1,
    "vision_layers": 1,
    "image_size": 32,
    "num_cams": 1,
    "prompt_len": 8,
    "response_len": 8,
    "metadata_len": 8,
    "subgoal": True,
}
"""A small policy with all its optional parts."""
BACKENDS = ROOT / "matrices/backends.yaml"
SMALL = {"image_size": 32, "n_obs_history": 1, "num_cams": 1, "prompt_len": 8, "n_layers": 2, "vision_layers": 1}
"""For short steps."""
FEW = {"warmup_steps": 2, "phase_steps": 2, "launches": 1}
CHECKPOINTED = ("fsdp", "fsdp_grad_op", "fsdp2")
FSDP = {
    "distributed_type": "FSDP",
    "mixed_precision": "bf16",
    "fsdp_config": {
        "fsdp_version": 1,
        "fsdp_sharding_strategy": "SHARD_GRAD_OP",
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_transformer_layer_cls_to_wrap": "InterleavedLayer",
        "fsdp_use_orig_params": True,
        "fsdp_sync_module_states": False,
        "fsdp_cpu_ram_efficient_loading": False,
    },
}
DEEPSPEED = {"distributed_type": "DEEPSPEED", "deepspeed_config": {"deepspeed_config_file": "ds.json"}}
ENGINE = {
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2, "reduce_bucket_size": 5_000_000},
    "gradient_accumulation_steps": 1,
    "gradient_clipping": 1.0,
    "train_micro_batch_size_per_gpu": "auto",
    "train_batch_size": "auto",
}


def measure(folder: Path) -> Path:
    """Measure all cells; returns the run's folder."""
    bench = KeptBench(folder)
    (folder / "fsdp.yaml").write_text(yaml.safe_dump(FSDP))
    (folder / "ds.yaml").write_text(yaml.safe_dump(DEEPSPEED))
    (folder / "ds.json").write_text(json.dumps(ENGINE))
    content = yaml.safe_load(BACKENDS.read_text())
    content["workload"] |= SMALL
    content["measure"] |= FEW
    content["include"] += [{"backend": backend, "grad_ckpt": True, "batch": 1} for backend in CHECKPOINTED]
    content["include"] += [
        {"backend": {"name": "my_fsdp", "config_file": "fsdp.yaml"}, "batch": 2},
        {"backend": {"name": "my_zero", "config_file": "ds.yaml"}, "batch": 2},
    ]
    bench("run", bench.matrix(**content), "--out", str(folder / "run"), cwd=ROOT)
    bench.assert_gone()
    return folder / "run"


def is_checkpointed(result: Result) -> bool:
    return bool(result.attempt.cell.options["grad_ckpt"])


def has_own_config(result: Result) -> bool:
    return result.attempt.cell.accelerate is not None
