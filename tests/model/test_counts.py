"""Parameters and arithmetic in closed form, against the model itself and torch's own counter."""

import pytest
import torch
from torch.utils.data import default_collate
from torch.utils.flop_counter import FlopCounterMode

from bench.model.config import PRESETS, Pi07Config
from bench.model.counts import flops_per_sample, parameter_count, parameter_count_by_part, prefix_length
from bench.model.data import Samples
from bench.model.workload import Pi05, Pi07

GIB = 2**30
FULL = {"response_len": 8, "metadata_len": 8, "subgoal": True}
"""Every optional part."""


@pytest.mark.parametrize("preset", list(PRESETS))
def test_parameter_count_is_the_closed_form(preset: str) -> None:
    config = Pi07Config(preset=preset)
    with torch.device("meta"):
        policy = Pi07(config).build()
    assert sum(parameter.numel() for parameter in policy.parameters()) == parameter_count(config)


def test_the_published_sizes() -> None:
    config = Pi07Config(preset="pi07")
    parts = parameter_count_by_part(config)
    assert parameter_count(config) == pytest.approx(5.59e9, rel=0.01)
    assert parts["backbone"] == pytest.approx(3.88e9, rel=0.002)
    assert parts["expert"] == pytest.approx(1.28e9, rel=0.002)
    assert parts["vision"] == pytest.approx(413e6, rel=0.002)
    assert parts["projector"] == pytest.approx(3e6, rel=0.02)
    assert parts["backbone_layer"] == pytest.approx(94.4e6, rel=0.001)
    assert parts["backbone_layer"] + parts["expert_layer"] == pytest.approx(131.7e6, rel=0.001)
    assert parameter_count(Pi07Config(preset="pi05")) == pytest.approx(3.3e9, rel=0.02)
    assert 80e6 < parameter_count(Pi07Config(preset="small")) < 120e6


def test_auto_preset_is_the_largest_that_fits() -> None:
    assert Pi07.auto_preset("cpu", 2000 * GIB) == "tiny"
    assert Pi07.auto_preset("cuda", 139 * GIB) == "pi07"
    assert Pi07.auto_preset("cuda", 79 * GIB) == "small"
    assert Pi07.auto_preset("cuda", 2 * GIB) == "tiny"


@pytest.mark.parametrize(
    ("device", "gib", "preset"),
    [("cpu", 2000, "tiny"), ("cuda", 15, "tiny"), ("cuda", 47, "tiny"), ("cuda", 79, "pi05")],
)
def test_auto_preset_of_pi05_counts_what_adam_takes_too(device: str, gib: int, preset: str) -> None:
    assert Pi05.auto_preset(device, gib * GIB) == preset


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n_obs_history": 1, "num_cams": 1},
        {"n_obs_history": 6, "num_cams": 3},
        {**FULL, "predict_response": True},
        {"n_kv_heads": 1, "qk_norm": False, "post_norms": False, "global_every": 0, "tokens_per_camera": 64},
    ],
)
def test_flops_are_those_that_torch_counts(fields: dict[str, object]) -> None:
    # eager: the counter does not know torch's fused attention on a CPU.
    config = Pi07Config(attention="eager", **fields)
    policy = Pi07(config).build().train()
    batch = default_collate([Samples(config, seed=0)[0]])
    with FlopCounterMode(display=False) as forward:
        loss = policy(batch)["loss"]
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    flops = flops_per_sample(config)
    assert forward.get_total_flops() == flops.forward
    assert forward.get_total_flops() + backward.get_total_flops() == flops.step


@pytest.mark.parametrize(
    "fields",
    [
        {"grad_ckpt": True},
        {"grad_ckpt": True, "post_norms": False},
        {"freeze_backbone": True},
        {"knowledge_insulation": False},
    ],
)
def test_flops_of_a_step_follow_the_switches(fields: dict[str, object]) -> None:
    config = Pi07Config(attention="eager", **fields)
    policy = Pi07(config).build().train()
    batch = default_collate([Samples(config, seed=0)[0]])
    with FlopCounterMode(display=False) as counter:
        policy(batch)["loss"].backward()
    assert counter.get_total_flops() == flops_per_sample(config).step


def test_the_prefix_is_as_long_as_its_parts() -> None:
    for fields in ({}, FULL, {"n_obs_history": 6, "num_cams": 4, "metadata_len": 4}):
        config = Pi07Config(**fields)
        policy, batch = Pi07(config).build(), default_collate([Samples(config, seed=0)[0]])
        assert policy._embed_prefix(batch, training=True).x_BSD.shape[1] == prefix_length(config)
    assert prefix_length(Pi07Config(preset="pi07", num_cams=1)) == 256 + 256 + 5 + 6 + 104 + 260 + 32
