"""What a user's accelerate config decides, and what DeepSpeed compiles for it."""

from typing import Any

import pytest
from examples import cell

from bench import backends
from bench.records.cell import Train

HOST = {"device": "cpu"}
OFFLOADED = {"stage": 2, "offload_optimizer": HOST}


def adam(**params: Any) -> dict[str, Any]:
    return {"type": "AdamW", "params": params}


def json_of(stage: dict[str, Any], **engine: Any) -> dict[str, Any]:
    config = {"zero_optimization": stage, **engine}
    return {"distributed_type": "DEEPSPEED", "deepspeed_config": {"deepspeed_config_file": config}}


def inline(**section: Any) -> dict[str, Any]:
    return {"distributed_type": "DEEPSPEED", "deepspeed_config": section}


@pytest.mark.parametrize(
    ("config", "built"),
    [
        (inline(zero_stage=2), ()),
        (inline(zero_stage=2, offload_optimizer_device="cpu"), ("CPUAdamBuilder",)),
        (inline(zero_stage=3, offload_param_device="cpu", offload_optimizer_device="cpu"), ("CPUAdamBuilder",)),
        (json_of({"stage": 2}), ()),
        (json_of({"stage": 2}, optimizer=adam()), ("FusedAdamBuilder",)),
        (json_of({"stage": 2}, optimizer=adam(torch_adam=True)), ()),
        (json_of({"stage": 2}, optimizer={"type": "Lamb"}), ("FusedLambBuilder",)),
        (json_of({"stage": 2}, optimizer={"type": "SGD", "params": {"lr": 0.1}}), ()),
        (json_of(OFFLOADED), ("CPUAdamBuilder",)),
        (json_of(OFFLOADED, optimizer=adam()), ("CPUAdamBuilder",)),
        (json_of(OFFLOADED, optimizer={"type": "Lion"}), ("CPULionBuilder",)),
        (json_of(OFFLOADED, zero_force_ds_cpu_optimizer=False), ()),
        (json_of({"stage": 2, "offload_optimizer": {"device": "auto"}}), ()),
    ],
)
def test_what_deepspeed_compiles_is_known_before_it_does(config: dict[str, Any], built: tuple[str, ...]) -> None:
    mine = cell("mine", accelerate=config, train=Train(**backends.own_settings(config)))
    assert backends.extensions(mine, "cuda") == built
    assert backends.extensions(mine, "cpu") == ("ShareMemCommBuilder", *built)


@pytest.mark.parametrize(
    ("backend", "offload", "built"),
    [("zero2", "none", ()), ("zero2", "optimizer", ("CPUAdamBuilder",)), ("zero3", "params", ("CPUAdamBuilder",))],
)
def test_what_deepspeed_compiles_for_a_built_in_backend(backend: str, offload: str, built: tuple[str, ...]) -> None:
    assert backends.extensions(cell(backend, train=Train(offload=offload)), "cuda") == built  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("config", "decided"),
    [
        ({"distributed_type": "MULTI_GPU"}, {"offload": "none"}),
        (inline(), {"offload": "none", "bucket_mb": 25}),
        (inline(gradient_clipping=0.01), {"max_grad_norm": 0.01}),
        (inline(gradient_clipping=0), {"max_grad_norm": None}),
        (inline(offload_param_device="cpu", offload_optimizer_device="cpu"), {"offload": "params"}),
        (json_of({"stage": 3, "overlap_comm": False}), {"zero_overlap_comm": False, "max_grad_norm": None}),
        (
            json_of({"stage": 1}, gradient_clipping=1.5, optimizer=adam(lr=0.5, weight_decay=0.1)),
            {"max_grad_norm": 1.5, "optimizer": "deepspeed:AdamW", "learning_rate": 0.5, "weight_decay": 0.1},
        ),
        (json_of({"stage": 1}, optimizer=adam(lr=None)), {"learning_rate": 1e-3, "weight_decay": 0.0}),
        (
            {"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 2, "fsdp_reshard_after_forward": False}},
            {"reshard_after_forward": False, "dp_replicate_size": 1},
        ),
    ],
)
def test_what_the_config_decides(config: dict[str, Any], decided: dict[str, Any]) -> None:
    assert decided.items() <= backends.own_settings(config).items()


def test_what_the_config_leaves_to_the_loop_stays_the_matrixs() -> None:
    left = backends.own_settings(json_of({"stage": 2}, gradient_clipping="auto", optimizer=adam(lr="auto")))
    assert not {"max_grad_norm", "learning_rate"}.intersection(left)
    assert left["weight_decay"] == 0.0  # DeepSpeed's default
    assert "max_grad_norm" not in backends.own_settings(inline())
    assert "bucket_mb" not in backends.own_settings({"distributed_type": "MULTI_GPU"})


def test_an_own_optimizer_is_not_replaced_unseen() -> None:
    """accelerate makes DeepSpeed's Adam of any optimizer that is offloaded."""
    mine = cell("zero2", train=Train(offload="optimizer", optimizer="torch.optim:SGD"))
    assert "replaces torch.optim:SGD by DeepSpeed's Adam" in (backends.forbids(mine, "cuda") or "")
