"""A user's accelerate configs and DeepSpeed JSON, on the bundled policy."""

import json

import yaml
from harness import Bench

from bench.records.outcome import Ok, Skipped

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


def test_own_configs_run_and_their_regime_is_observed(bench: Bench) -> None:
    (bench.folder / "fsdp.yaml").write_text(yaml.safe_dump(FSDP))
    (bench.folder / "ds.yaml").write_text(yaml.safe_dump(DEEPSPEED))
    (bench.folder / "ds.json").write_text(json.dumps(ENGINE))
    matrix = bench.matrix(
        workload={"name": "pi07", "preset": "tiny"},
        matrix={
            "backend": [
                {"name": "my_fsdp", "config_file": "fsdp.yaml"},
                {"name": "my_zero", "config_file": "ds.yaml"},
                "fsdp_grad_op",
                "zero2",
            ],
            "batch": 2,
        },
    )
    bench("run", matrix, "--out", str(bench.folder / "run"))
    my_fsdp, my_zero, fsdp, zero = (result.outcome.ranks[0] for result in bench.results())  # type: ignore[union-attr]
    assert my_fsdp.regime == fsdp.regime
    assert my_zero.regime == zero.regime
    assert my_zero.losses == zero.losses


def test_a_config_of_one_process_runs_beside_others_and_one_that_cannot_run_is_skipped(bench: Bench) -> None:
    """As `accelerate config` writes them by default."""
    (bench.folder / "no.yaml").write_text("distributed_type: 'NO'\nmixed_precision: 'no'\nnum_processes: 1\n")
    (bench.folder / "fsdp.yaml").write_text("distributed_type: FSDP\nfsdp_config: {fsdp_version: 1}\n")
    files = {"alone": "no.yaml", "sharded": "fsdp.yaml"}
    own = [{"name": name, "config_file": file} for name, file in files.items()]
    bench("run", bench.matrix(matrix={"backend": own, "batch": 1}), "--out", str(bench.folder / "run"))
    alone, skipped = (result.outcome for result in bench.results())
    assert isinstance(alone, Ok)
    assert [rank.regime.world_size for rank in alone.ranks] == [1]
    assert isinstance(skipped, Skipped)
    assert "fsdp_cpu_ram_efficient_loading: false" in skipped.reason
