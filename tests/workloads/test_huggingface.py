"""Models of transformers as workloads: what a matrix may set, what is built, and what it is fed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES, workload
from pydantic import ValidationError

from bench import workloads
from bench.errors import InputError
from bench.records.rank_outcome import Work
from bench.runner.setup import work_of
from bench.workloads.huggingface.description import describe, read

KEYS = {
    "bert": ("input_ids", 16),
    "wav2vec2": ("input_values", 4000),
    "whisper": ("input_features", 8 * 40),
    "vit": ("pixel_values", 3 * 32 * 32),
}
"""What a sample holds beside its labels, and of how many values."""


def made(model_type: str, **options: Any) -> Any:
    """One of the tiny families, configured."""
    fields = workload(model_type, **options)
    definition = workloads.load(fields.pop("name"))
    config = definition.Config.model_validate({**fields.pop("config"), **fields})
    return definition.create(config)


def loss_of(task: Any, indices: tuple[int, ...] = (0, 1)) -> torch.Tensor:
    torch.manual_seed(0)
    model, samples = task.build(), task.dataset(seed=1)
    batch = torch.utils.data.default_collate([samples[index] for index in indices])
    loss: torch.Tensor = model(**batch).loss
    loss.backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad), "DDP would miss a gradient"
    return loss.detach()


@pytest.mark.parametrize("model_type", FAMILIES)
def test_every_family_trains_and_checkpointing_changes_no_loss(model_type: str) -> None:
    plain, checkpointed = loss_of(made(model_type)), loss_of(made(model_type, grad_ckpt=True))
    assert torch.isfinite(plain)
    assert torch.equal(plain, checkpointed)
    alone = torch.stack([loss_of(made(model_type), (index,)) for index in (0, 1)])
    assert alone.mean().item() == pytest.approx(plain.item(), rel=1e-3), "a mean over samples with equal weights"


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_sample_depends_on_the_seed_and_its_index_alone(model_type: str) -> None:
    name, values = KEYS.get(model_type, ("input_ids", 16))
    samples, again = made(model_type).dataset(seed=3), made(model_type).dataset(seed=3)
    other = made(model_type).dataset(seed=4)
    assert samples[5][name].numel() == values
    assert all(torch.equal(samples[5][key], again[5][key]) for key in samples[5])
    assert not torch.equal(samples[5][name], samples[6][name])
    assert not torch.equal(samples[5][name], other[5][name])


def test_a_child_process_without_torch_describes_the_same() -> None:
    child = subprocess.run(
        [sys.executable, "-m", "bench.workloads.huggingface", "gpt2"], capture_output=True, text=True, check=True
    )
    assert json.loads(child.stdout.splitlines()[-1]) == json.loads(read("gpt2").model_dump_json())


def test_same_seed_same_weights_and_attention_as_asked() -> None:
    weights = []
    for attention in ("eager", "sdpa"):
        torch.manual_seed(7)
        model = made("gpt2", attention=attention).build()
        assert model.config._attn_implementation == attention
        assert not model.config.use_cache
        weights.append(torch.cat([parameter.flatten() for parameter in model.parameters()]))
    assert torch.equal(*weights)
    with pytest.raises(InputError, match="no_such"):
        made("gpt2", attention="no_such").build()


def test_forward_that_draws_random_numbers_is_refused() -> None:
    task = made("gpt2")
    model, sample = task.build(), task.dataset(seed=1)[0]
    model.transformer.drop.p = 0.5
    with pytest.raises(InputError, match="forward drew random numbers"):
        model(**torch.utils.data.default_collate([sample]))


def test_flops_are_those_of_the_formula_or_not_known() -> None:
    layers, width, tokens, vocabulary = 2, 32, 16, 96
    layer = 2 * tokens * 12 * width**2 + 2 * 2 * tokens**2 * width
    forward = layers * layer + 2 * tokens * width * vocabulary
    plain, reentrant = (
        made("gpt2").flops_per_sample(),
        made("gpt2", grad_ckpt=True, use_reentrant=True).flops_per_sample(),
    )
    assert (plain.step, plain.recomputed) == (3 * forward, 0)
    assert (reentrant.step, reentrant.recomputed) == (3 * forward + layers * layer, layers * layer)
    assert made("gpt2").tokens_per_sample() == 16
    assert made("vit").tokens_per_sample() is None


TOKENS, WIDTH, VOCABULARY, INNER = 16, 32, 96, 64
SHARED = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": INNER,
    "seq_len": TOKENS,
}
HEAD = {"head_dim": 16}
LATENT = {"kv_lora_rank": 8, "q_lora_rank": 12, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16}
GATED = 3 * WIDTH
"""Weights of a gated layer, for each inner unit."""
GROUPED_HEADS = WIDTH * (2 * 32 + 2 * 16)
"""Weights of attention with two heads of 16 and one for keys and values."""
LATENT_HEADS = WIDTH * 12 + 12 * 2 * 16 + WIDTH * 16 + 8 * 2 * 24 + 2 * 16 * WIDTH


@pytest.mark.parametrize(
    ("model_type", "fields", "weights"),
    [
        ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}, [4 * WIDTH + 2 * GATED * INNER] * 2),
        ("gpt_oss", {**HEAD, "num_local_experts": 4, "num_experts_per_tok": 1}, [4 * WIDTH + GATED * INNER] * 2),
        (
            "llama4_text",  # computes all experts
            {**HEAD, "num_local_experts": 4, "num_experts_per_tok": 1, "intermediate_size_mlp": 48, "pad_token_id": 0},
            [4 * WIDTH + 2 * GATED * INNER] * 2,
        ),
        (
            "qwen3_moe",
            {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "mlp_only_layers": [0]},
            [GATED * INNER, 8 * WIDTH + 3 * GATED * 24],
        ),
        (
            "deepseek_v3",
            {**LATENT, "num_key_value_heads": 2, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2}
            | {"topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1, "moe_intermediate_size": 24},
            [GATED * INNER, 8 * WIDTH + (2 + 1) * GATED * 24],
        ),
    ],
)
def test_flops_of_experts_are_those_of_the_tokens_that_they_get(
    model_type: str, fields: dict[str, Any], weights: list[int]
) -> None:
    """By hand: a multiply-add for each weight that a token meets, and attention's products of all pairs of tokens.

    Some versions of torch count the angles of the positions, too.
    """
    kind = workloads.load(f"hf:{model_type}")
    task: Any = kind.create(kind.Config.model_validate({**SHARED, **fields}))
    heads = LATENT_HEADS if model_type == "deepseek_v3" else GROUPED_HEADS
    met = WIDTH * VOCABULARY + sum(weights) + 2 * heads
    step = 3 * (2 * TOKENS * met + 2 * 2 * 2 * TOKENS**2 * 2 * 16)
    assert step <= task.flops_per_sample().step < 1.001 * step


def test_flops_of_experts_that_only_data_can_tell_are_not_known() -> None:
    kind = workloads.load("hf:jetmoe")
    fields = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 64, "kv_channels": 16}
    task: Any = kind.create(kind.Config.model_validate({**fields, "num_key_value_heads": 1, "seq_len": 16}))
    assert task.build()
    assert task.flops_per_sample() is None


def test_a_model_whose_flops_cannot_be_counted_is_measured_all_the_same() -> None:
    task = made("llama", attention="flex_attention")
    assert work_of(task) == Work(tokens_per_sample=16)
    with pytest.raises(NotImplementedError, match="FlexAttention does not support backward on CPU"):
        loss_of(task)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_layer": "two"}, "n_layer"),
        ({"n_layers": 2}, "n_layers"),
        ({"attn_pdrop": 0.1}, "attn_pdrop must be 0"),
        ({"seq_len": 2000}, "seq_len=2000 is more than n_positions=1024"),
        ({"task": "CTC"}, "CausalLM"),
    ],
)
def test_wrong_fields_are_refused(fields: dict[str, Any], message: str) -> None:
    config = workloads.load("hf:gpt2").Config
    assert config().resid_pdrop == 0, "dropout is off"
    with pytest.raises(ValidationError, match=message):
        config.model_validate(fields)


def test_a_folder_gives_defaults_and_its_architecture_the_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    written = {"model_type": "bert", **FAMILIES["bert"], "hidden_dropout_prob": 0.1, "is_decoder": True}
    (folder / "config.json").write_text(json.dumps({**written, "architectures": ["BertLMHeadModel"]}))
    monkeypatch.syspath_prepend(tmp_path)
    definition = workloads.load("hf:./mine")
    config = definition.Config()
    assert (config.task, config.hidden_size, config.hidden_dropout_prob) == ("CausalLM", 32, 0)
    torch.manual_seed(0)
    assert type(definition.create(config).build()).__name__ == "BertLMHeadModel"
    assert describe("bert").tasks[0] == "MaskedLM"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hf:gpt22", "did you mean 'gpt2'"),
        ("hf:openai-community/gpt2", "nothing comes from the hub"),
        ("hf:sam_mask_decoder", "it is a part of others"),
        ("hf:./nowhere", "cannot read the model's config"),
    ],
)
def test_no_such_model(name: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        workloads.load(name)
    assert message in str(error.value)


def test_a_field_that_only_the_model_looks_up_can_be_set() -> None:
    """Config files of Qwen3-MoE have a head_dim that its config class does not declare."""
    own, derived = (made("qwen3_moe", **more).build().config for more in ({"head_dim": 8}, {}))
    assert own.head_dim == 8
    assert not hasattr(derived, "head_dim")


def test_a_token_outside_the_vocabulary_is_named() -> None:
    task = made("llava", image_token_index=32_000)
    with pytest.raises(IndexError) as error:
        loss_of(task)
    refusal = task.refusal(error.value)
    assert isinstance(refusal, InputError)
    assert "image_token_index below vocab_size" in str(refusal)


def test_values_that_the_config_refuses() -> None:
    with pytest.raises(InputError, match="LlamaConfig refuses these values"):
        made("llama", num_attention_heads=3).build()
