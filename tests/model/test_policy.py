"""The bundled policy: its sizes, its invariants, and that equal samples give equal losses however they are computed."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.utils.data import default_collate

from bench.model import attention
from bench.model.config import PRESETS, Pi07Config
from bench.model.data import Samples
from bench.model.interleaved import InterleavedLayer
from bench.model.policy import Pi07Policy
from bench.model.prefix import Block, assemble, suffix_layout
from bench.model.vision import VisionLayer, frame_embedding
from bench.model.workload import Pi07


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def build(**fields: object) -> Pi07Policy:
    torch.manual_seed(0)
    policy = Pi07(Pi07Config(**fields)).build()
    assert isinstance(policy, Pi07Policy)
    return policy


def batch_of(config: Pi07Config, *indices: int) -> dict[str, Tensor]:
    samples = Samples(config, seed=1000)
    collated: dict[str, Tensor] = default_collate([samples[index] for index in indices])
    return collated


def open_gates(policy: nn.Module) -> None:
    """AdaRMS starts with every branch of the expert closed; a test of what flows through needs them open."""
    torch.manual_seed(1)
    for name, parameter in policy.named_parameters():
        if "modulation" in name:
            nn.init.normal_(parameter, std=0.3)


# --- config ---------------------------------------------------------------------------------------------------------


def test_a_preset_fills_what_is_not_given() -> None:
    config = Pi07Config(preset="pi07", num_cams=1)
    assert (config.num_cams, config.n_obs_history, config.backbone_hidden) == (1, 6, 2560)
    for name, values in PRESETS.items():
        assert Pi07Config(**values) == Pi07Config(preset=name)  # what a loader merges is what the config fills in
    assert Pi07Config() == Pi07Config(preset="tiny")
    assert Pi07Config.model_validate_json(config.model_dump_json()) == config


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_heads": 4, "n_kv_heads": 3}, "n_heads=4 is not a multiple of n_kv_heads=3"),
        ({"image_size": 65}, "image_size=65 is not a multiple of patch_size=8"),
        ({"tokens_per_camera": 9}, "tokens_per_camera=9 cannot be pooled from 8 x 8 patches"),
        ({"tokens_per_camera": 15}, "must be the square of a divisor of 8"),
        ({"head_dim": 31}, "head_dim=31 is odd"),
        ({"num_cams": 9}, "less than or equal to 8"),
        ({"num_cams": "2"}, "valid integer"),
        ({"preset": "huge"}, "'tiny', 'small', 'pi05' or 'pi07'"),
        ({"n_cams": 2}, "Extra inputs"),
        ({"attention": "flex", "attention_dropout": 0.1}, "attention=flex has no dropout; set attention_dropout to 0"),
        ({"dataset_n_obs_history": 3}, "dataset_n_obs_history=3 but the policy has n_obs_history=2"),
        ({"dataset_num_cams": 3}, "dataset_num_cams=3 but the policy has num_cams=2"),
    ],
)
def test_sizes_that_do_not_go_together_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Pi07Config(**fields)


def test_naming_the_workload_does_not_import_torch() -> None:
    code = "import sys, bench.model.workload as w; w.Pi07(w.Pi07.Config()); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# --- structure ------------------------------------------------------------------------------------------------------


def test_each_parameter_is_registered_once_and_layers_own_both_halves() -> None:
    policy = build()
    names = [name for name, _ in policy.named_parameters(remove_duplicate=False)]
    assert len(names) == len({id(parameter) for parameter in policy.parameters()})
    assert set(policy.state_dict()) == set(names)  # no statistics, no trace of the attention function
    layers = [module for module in policy.modules() if isinstance(module, InterleavedLayer)]
    assert len(layers) == policy.config.n_layers
    inside = {name.split(".")[2] for name in names if name.startswith("interleaved_layers.")}
    assert inside == {"backbone_layer", "expert_layer"}
    assert {type(module).__name__ for module in policy.modules()} >= set(Pi07.units)


def test_a_frozen_backbone_keeps_still() -> None:
    policy = build(freeze_backbone=True).train()
    frozen = {name for name, parameter in policy.named_parameters() if not parameter.requires_grad}
    assert frozen == {n for n, _ in policy.named_parameters() if "backbone_" in n or n == "embedding"}
    for layer in policy.interleaved_layers:
        assert isinstance(layer, InterleavedLayer)
        assert layer.training
        assert layer.expert_layer.training
        assert not any(module.training for module in layer.backbone_layer.modules())
    policy(batch_of(policy.config, 0))["loss"].backward()
    assert {name for name, parameter in policy.named_parameters() if parameter.grad is None} == frozen


@pytest.mark.parametrize("insulated", [True, False])
@pytest.mark.parametrize("history", [1, 2])
def test_every_parameter_gets_a_gradient(insulated: bool, history: int) -> None:
    policy = build(knowledge_insulation=insulated, n_obs_history=history, num_cams=1)
    policy(batch_of(policy.config, 0))["loss"].backward()
    assert [name for name, parameter in policy.named_parameters() if parameter.grad is None] == []


def test_insulation_keeps_the_flow_loss_out_of_the_backbone() -> None:
    for insulated in (True, False):
        policy = build(knowledge_insulation=insulated)
        open_gates(policy)
        policy(batch_of(policy.config, 0))["mse"].backward()
        reached = {name for name, parameter in policy.named_parameters() if parameter.grad is not None}
        assert any("backbone_layer" in name or "vision" in name for name in reached) != insulated
        assert "action_out.weight" in reached


# --- the same loss, however it is computed --------------------------------------------------------------------------


def test_two_seeded_forwards_are_bit_identical() -> None:
    first, second = (build()(batch_of(Pi07Config(), 0, 1)) for _ in range(2))
    assert set(first) == {"loss", "mse", "ce", "l1", "accuracy"}
    assert all(value.shape == () and torch.equal(value, second[name]) for name, value in first.items())


@pytest.mark.parametrize(("cams", "history"), [(1, 1), (1, 6), (2, 2), (3, 1), (4, 2)])
def test_cameras_and_history(cams: int, history: int) -> None:
    policy = build(num_cams=cams, n_obs_history=history)
    loss = policy(batch_of(policy.config, 0, 1))["loss"]
    assert 2 < loss < 20


def test_attention_functions_agree() -> None:
    policies = [build(attention=name) for name in ("eager", "sdpa", "flex")]
    batch = batch_of(Pi07Config(), 0, 1)
    for policy in policies:
        open_gates(policy)
    with torch.no_grad():
        eager, *others = (policy(batch) for policy in policies)
    for other in others:
        assert eager["mse"].item() == pytest.approx(other["mse"].item(), abs=1e-4)
        assert eager["ce"].item() == pytest.approx(other["ce"].item(), abs=1e-4)


def test_flex_attention_trains_on_no_cpu() -> None:
    policy = build(attention="flex")
    with pytest.raises(NotImplementedError, match="FlexAttention does not support backward on CPU"):
        policy(batch_of(policy.config, 0, 1))


def test_attention_is_looked_up_when_called(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, calls = build(num_cams=1), []

    def counted(*inputs: Any) -> Tensor:
        calls.append(inputs[0].shape)
        return attention.eager(*inputs)

    monkeypatch.setitem(attention.ATTENTION, "sdpa", counted)
    policy(batch_of(policy.config, 0))
    assert len(calls) == 2 * policy.config.n_layers + policy.config.vision_layers + 1  # one vision layer is space-time


def test_recomputing_changes_neither_loss_nor_gradient() -> None:
    losses, gradients = [], []
    for grad_ckpt in (False, True):
        policy = build(grad_ckpt=grad_ckpt, knowledge_insulation=False).train()
        open_gates(policy)
        out = policy(batch_of(policy.config, 0, 1))
        out["loss"].backward()
        losses.append(out["loss"].item())
        gradients.append([parameter.grad for parameter in policy.parameters()])
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    for plain, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, recomputed, rtol=1e-5, atol=1e-6)


def test_recomputing_drops_the_same_attention_weights() -> None:
    losses = []
    for grad_ckpt in (False, True):
        policy = build(grad_ckpt=grad_ckpt, attention_dropout=0.5).train()
        open_gates(policy)
        torch.manual_seed(3)
        out = policy(batch_of(policy.config, 0, 1))
        out["loss"].backward()
        losses.append((out["loss"].item(), policy.embedding.grad.norm().item()))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    kept = build(attention_dropout=0.5).eval()
    assert torch.equal(kept(batch_of(kept.config, 0))["loss"], build().eval()(batch_of(kept.config, 0))["loss"])


def test_splitting_a_batch_keeps_the_mean_loss() -> None:
    policy = build()
    whole = policy(batch_of(policy.config, 0, 1, 2, 3))
    halves = [policy(batch_of(policy.config, *pair)) for pair in ((0, 1), (2, 3))]
    for name, value in whole.items():
        assert value.item() == pytest.approx(sum(half[name].item() for half in halves) / 2, abs=1e-5)


@pytest.mark.parametrize("name", ["eager", "sdpa"])
def test_bf16_weights_and_bf16_inputs(name: str) -> None:
    exact = build(attention=name)(batch_of(Pi07Config(), 0, 1))
    policy = build(attention=name).to(torch.bfloat16)
    batch = batch_of(policy.config, 0, 1)
    from_fp32 = policy(batch)
    from_bf16 = policy({key: x.bfloat16() if x.is_floating_point() else x for key, x in batch.items()})
    assert from_fp32["loss"].dtype == torch.float32
    assert torch.equal(from_fp32["loss"], from_bf16["loss"])  # the samples' floats are exact in bf16
    assert from_fp32["loss"].item() == pytest.approx(exact["loss"].item(), rel=0.01)
    from_fp32["loss"].backward()


def test_the_loss_falls() -> None:
    policy = build(num_cams=1)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3)
    outs = []
    for step in range(20):
        out = policy(batch_of(policy.config, *range(4 * step, 4 * step + 4)))
        out["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
        outs.append({name: value.item() for name, value in out.items()})
    assert outs[-1]["ce"] < outs[0]["ce"] - 0.5
    assert outs[-1]["mse"] < outs[0]["mse"]


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_runs_forward_and_backward_without_memory(preset: str) -> None:
    config = Pi07Config(preset=preset)
    batch = {name: value.to("meta") for name, value in batch_of(config, 0).items()}
    with torch.device("meta"):
        policy = Pi07(config).build()
    out = policy(batch)
    assert {name: (value.shape, value.device.type) for name, value in out.items()} == dict.fromkeys(out, ((), "meta"))
    out["loss"].backward()
    for name, parameter in policy.named_parameters():
        assert parameter.grad is not None, name
        assert (parameter.grad.shape, parameter.is_meta) == (parameter.shape, True)


# --- parts ----------------------------------------------------------------------------------------------------------


def test_cached_prefix_equals_one_joint_pass() -> None:
    config = Pi07Config()
    torch.manual_seed(0)
    layer = InterleavedLayer(config, 0)
    open_gates(layer)
    x = torch.randn(2, 7, config.backbone_hidden)
    is_real = torch.tensor([[True] * 7, [True] * 5 + [False] * 2])
    prefix = assemble([Block.joint(x[:, :4], is_real[:, :4]), Block.text(x[:, 4:], is_real[:, 4:])])
    actions = torch.randn(2, 3, config.expert_hidden)
    condition = torch.randn(2, config.expert_hidden)
    positions, mask = suffix_layout(is_real, 3)

    after, none, cache = layer(x, None, prefix.positions_BS, prefix.mask_BSS)
    assert none is None
    nothing, acted, _ = layer(None, actions, positions, mask, condition, cache)
    assert nothing is None
    upper = torch.cat((prefix.mask_BSS, torch.zeros(2, 7, 3, dtype=torch.bool)), 2)
    both = layer(x, actions, torch.cat((prefix.positions_BS, positions), 1), torch.cat((upper, mask), 1), condition)
    torch.testing.assert_close(both[0], after)
    torch.testing.assert_close(both[1], acted)


def test_sampling_follows_the_flow_without_the_answer() -> None:
    policy = build(num_cams=1).eval()
    open_gates(policy)
    batch = batch_of(policy.config, 0, 1)
    asked = {key: value for key, value in batch.items() if "action" not in key}
    found = policy.sample(asked)
    assert found.shape == (2, policy.config.action_horizon, policy.config.action_dim)
    assert torch.equal(found, policy.sample(asked))
    prefix = policy._embed_prefix(batch, training=True)  # with the answer behind: the expert must not see it
    _, caches = policy._run_prefix(prefix)
    x = batch["noise"]
    for time in (1.0, 0.8, 0.6, 0.4, 0.2):
        x = x - policy._flow(x, torch.full((2,), time), prefix, caches) / 5
    torch.testing.assert_close(found, policy.normalize_actions.undo(x), rtol=1e-5, atol=1e-5)


def test_who_sees_whom_in_the_prefix() -> None:
    x = torch.zeros(1, 2, 4)
    prefix = assemble([Block.joint(x), Block.text(x, torch.tensor([[True, False]])), Block.joint(x)])
    assert prefix.positions_BS.tolist() == [[0, 1, 2, 2, 3, 4]]
    assert prefix.mask_BSS[0].int().tolist() == [
        [1, 1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [0, 0, 0, 1, 0, 0],  # padding sees itself, and nobody sees it
        [1, 1, 1, 0, 1, 1],
        [1, 1, 1, 0, 1, 1],
    ]


def test_the_expert_cannot_read_the_discrete_actions() -> None:
    policy = build(num_cams=1)
    open_gates(policy)
    batch = batch_of(policy.config, 0)
    changed = {**batch, "action_ids": batch["action_ids"].flip(1)}
    before, after = policy(batch), policy(changed)
    assert torch.equal(before["mse"], after["mse"])
    assert not torch.equal(before["ce"], after["ce"])


def test_padded_tokens_change_nothing() -> None:
    policy = build(dataset_num_cams=1)  # the second camera is padding
    open_gates(policy)
    batch = batch_of(policy.config, 0)
    batch["frame_is_real"] = torch.tensor([[False, True]])
    assert batch["camera_is_real"].tolist() == [[True, False]]
    changed = {key: value.clone() for key, value in batch.items()}
    changed["prompt_ids"][~batch["prompt_is_real"]] += 1
    changed["images"][:, 1] = 77
    changed["images"][:, :, 0] = 99
    changed["state"][:, 0] = 5.0
    for name, value in policy(batch).items():
        assert torch.equal(value, policy(changed)[name])


def test_with_one_frame_space_time_is_the_plain_layer() -> None:
    config = Pi07Config()
    torch.manual_seed(0)
    space_time, plain = VisionLayer(config, space_time=True), VisionLayer(config, space_time=False)
    plain.load_state_dict(space_time.state_dict())  # no parameters of its own
    x = torch.randn(4, 64, config.vision_hidden)
    one, two = torch.ones(4, 1, 1, dtype=torch.bool), torch.ones(2, 2, 2, dtype=torch.bool).tril()
    assert torch.equal(space_time(x, one), plain(x, one))
    after = space_time(x, two)
    assert not torch.allclose(after[1::2], plain(x, two)[1::2])  # the current frames see the past
    torch.testing.assert_close(after[1::2], reference_space_time(space_time, x)[1::2])
    assert frame_embedding(6, x)[-1].eq(0).all()
    assert frame_embedding(6, x)[:-1].ne(0).any(-1).all()


def reference_space_time(layer: VisionLayer, x: Tensor) -> Tensor:
    """The layer written out for two frames, patch by patch in time, from the same weights."""
    y = layer.attention_norm(x + frame_embedding(2, x).repeat(x.shape[0] // 2, 1, 1))
    q, k, v = (attention.split_heads(p(y), layer.head_dim) for p in (layer.q_proj, layer.k_proj, layer.v_proj))
    mixed = v.clone()
    for now in range(1, x.shape[0], 2):
        score = torch.stack([(q[now] * k[past]).sum(-1) for past in (now - 1, now)]) * layer.head_dim**-0.5
        share = score.softmax(0)[..., None]
        mixed[now] = share[0] * v[now - 1] + share[1] * v[now]
    x = x + layer.o_proj(attention.merge_heads(attention.eager(q, k, mixed, None, 0.0)))
    out: Tensor = x + layer.down_proj(nn.functional.gelu(layer.up_proj(layer.mlp_norm(x)), approximate="tanh"))
    return out


def test_patches_are_cut_as_by_a_convolution() -> None:
    embedding = build().vision.patch_embedding
    image = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    kernel = embedding.proj.weight.view(-1, 3, 8, 8)
    convolved = nn.functional.conv2d(image / 127.5 - 1, kernel, embedding.proj.bias, stride=8)
    torch.testing.assert_close(embedding(image), convolved.flatten(2).mT + embedding.position)


def test_states_and_actions_are_normalized_by_the_statistics_of_the_mixture() -> None:
    config = Pi07Config()
    batch, policy = batch_of(config, *range(300)), build()
    state, actions = policy.normalize_state(batch["state"]), policy.normalize_actions(batch["actions"])
    assert abs(state.mean()) < 0.05
    assert state.std() == pytest.approx(1, abs=0.05)
    assert abs(actions.mean()) < 0.2  # a few tasks' sines, not all phases alike
    assert actions.std() == pytest.approx(1, abs=0.1)
    torch.testing.assert_close(
        policy.normalize_actions.undo(policy.normalize_actions(batch["actions"])), batch["actions"]
    )
    cast = build().to(torch.bfloat16)
    assert torch.equal(cast.normalize_state(batch["state"]), policy.normalize_state(batch["state"]))


# --- samples --------------------------------------------------------------------------------------------------------


def test_a_sample_depends_on_seed_and_index_alone() -> None:
    samples = Samples(Pi07Config(), seed=1000)
    late = samples[7]
    again = Samples(Pi07Config(), seed=1000)[7]
    assert all(torch.equal(value, again[key]) for key, value in late.items())
    assert not torch.equal(samples[8]["noise"], late["noise"])
    assert not torch.equal(Samples(Pi07Config(), seed=1001)[7]["noise"], late["noise"])
    with pytest.raises(IndexError):
        samples[len(samples)]
    few = Samples(Pi07Config(dataset_size=5), seed=1000)
    assert torch.equal(few[7]["noise"], samples[2]["noise"])


def test_samples_are_within_bounds() -> None:
    config = Pi07Config()
    batch = batch_of(config, *range(200))
    assert batch["images"].dtype == torch.uint8
    assert batch["images"].shape == (200, 2, 2, 3, 64, 64)
    for key in ("prompt_ids", "action_ids"):
        assert batch[key].min() >= 16
        assert batch[key].max() < config.vocab_size
    assert all(x.dtype == torch.bool and x[:, 0].any() for key, x in batch.items() if key.endswith("_is_real"))
    assert batch["frame_is_real"][:, -1].all()
    assert 0.5 < batch["frame_is_real"][:, 0].float().mean() < 0.9
    assert 0 < batch["time"].min() <= batch["time"].max() <= 1
    assert batch["time"].mean() == pytest.approx(0.6, abs=0.06)  # Beta(1.5, 1)
