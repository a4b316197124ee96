"""Model types of each kind as `hf:` trains them: their samples, the first step, and what is refused."""

import json
from typing import Any

import pytest
import torch
from families import DECODER, ENCODER, FAMILIES, HEADS, KINDS, PAIR, PICTURE, PICTURE_SIZES, TINY_RESNET
from pydantic import ValidationError

from bench import workloads
from bench.errors import InputError
from bench.runner.forward import Forward
from bench.workloads.huggingface.description import Description, read
from bench.workloads.huggingface.model import build_model, config_of

BLIP = {
    "text_config": {
        "model_type": "opt",
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "ffn_dim": 32,
    },
    "vision_config": PICTURE,
    "qformer_config": {**ENCODER, "vocab_size": 96, "encoder_hidden_size": 32},
}
CODEC = {
    "model_type": "mimi",
    **DECODER,
    "upsample_groups": 32,
    "num_filters": 2,
    "codebook_size": 16,
    "codebook_dim": 8,
    "vector_quantization_hidden_dimension": 8,
    "num_quantizers": 4,
}
DEPTH = {**DECODER, "num_codebooks": 4, "backbone_hidden_size": 32, "vocab_size": 20}
SPEAKER = {
    "hidden_size": 32,
    "vocab_size": 20,
    "num_mel_bins": 8,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_linear_units": 32,
    "decoder_linear_units": 32,
    "speech_decoder_postnet_units": 16,
    "duration_predictor_channels": 16,
    "energy_predictor_channels": 16,
    "pitch_predictor_channels": 16,
}
RARE: dict[str, dict[str, Any]] = {
    "dia": {
        "encoder_config": {**DECODER, "vocab_size": 64},
        "decoder_config": {
            **DECODER,
            "vocab_size": 64,
            "num_channels": 3,
            "cross_num_attention_heads": 2,
            "cross_head_dim": 16,
            "cross_num_key_value_heads": 2,
            "cross_hidden_size": 32,
        },
        "eos_token_id": 60,
        "pad_token_id": 61,
        "bos_token_id": 62,
        "delay_pattern": [0, 1, 2],
    },
    "csm": {
        **DECODER,
        "vocab_size": 20,
        "text_vocab_size": 96,
        "num_codebooks": 4,
        "audio_token_id": 90,
        "audio_eos_token_id": 91,
        "depth_decoder_config": DEPTH,
        "codec_config": CODEC,
    },
    "dac": {"encoder_hidden_size": 4, "decoder_hidden_size": 32, "downsampling_ratios": [2, 4], "codebook_dim": 4},
    "fastspeech2_conformer": SPEAKER,
    "decision_transformer": {"state_dim": 5, "act_dim": 2, "hidden_size": 32, "n_layer": 1, "n_head": 2},
    "aimv2": {**PAIR, "text_config": {**ENCODER, "vocab_size": 96, "eos_token_id": 2}},
    "dinov3_vit": PICTURE,
    "flava": {
        "image_config": {**PICTURE, "vocab_size": 96},
        "text_config": {**ENCODER, "vocab_size": 96},
        "multimodal_config": ENCODER,
        "image_codebook_config": {"num_groups": 4, "hidden_size": 8, "vocab_size": 96},
        "hidden_size": 32,
        "projection_dim": 16,
    },
    "glmasr": {
        "audio_config": {**ENCODER, "intermediate_size": 128, "num_mel_bins": 8},
        "text_config": {**DECODER, "model_type": "llama"},
        "audio_token_id": 90,
    },
    "gradium_phonon_tts": {
        **DECODER,
        "num_attention_heads": 2,
        "latent_dim": 4,
        "audio_prompt_dim": 4,
        "flow_head_config": {"hidden_size": 32, "num_hidden_layers": 1, "latent_dim": 4, "condition_dim": 32},
    },
    "granite_docling": {
        "text_config": {**DECODER, "bos_token_id": 1, "eos_token_id": 2},
        "vision_config": {
            **PICTURE,
            "out_hidden_size": 32,
            "deepstack_visual_indexes": [1],
            "scale_factor": 2,
            "use_fine_route": False,
        },
        "image_token_id": 90,
        "pad_token_id": 0,
    },
    "granite_speech5_ctc": {
        "vocab_size": 96,
        "encoder_config": {**ENCODER, "vocab_size": 96, "num_mel_bins": 8, "context_size": 16},
    },
    "grounding-dino": {
        **HEADS,
        "encoder_layers": 1,
        "decoder_layers": 2,
        "backbone_config": {**TINY_RESNET, "out_features": ["stage2", "stage3", "stage4"]},
        "text_config": {**ENCODER, "model_type": "bert", "vocab_size": 1024},
        "d_model": 32,
        "num_queries": 6,
        "num_feature_levels": 4,
        "query_dim": 4,
    },
    "higgs_audio_v2": {
        **DECODER,
        "num_codebooks": 3,
        "codebook_size": 20,
        "eos_token_id": 2,
        "audio_token_id": 90,
        "audio_bos_token_id": 91,
        "audio_delay_token_id": 92,
        "audio_stream_bos_id": 16,
        "audio_stream_eos_id": 17,
    },
    "longformer": {**ENCODER, "vocab_size": 96, "attention_window": [8, 8]},
    "luke": {**ENCODER, "vocab_size": 96, "entity_vocab_size": 20, "entity_emb_size": 8},
    "moss_transcribe_diarize": {
        "audio_config": {
            "d_model": 32,
            "encoder_layers": 1,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 64,
            "num_mel_bins": 8,
            "max_source_positions": 20,
        },
        "text_config": {**DECODER, "model_type": "qwen3"},
        "audio_token_id": 90,
    },
    "pop2piano": {"vocab_size": 96, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2},
    "reformer": {
        "vocab_size": 96,
        "hidden_size": 32,
        "num_attention_heads": 2,
        "attention_head_size": 16,
        "feed_forward_size": 64,
        "attn_layers": ["local", "lsh"],
        "axial_pos_shape": [4, 4],
        "axial_pos_embds_dim": [16, 16],
        "local_attn_chunk_length": 8,
        "lsh_attn_chunk_length": 8,
    },
    "speech-encoder-decoder": {
        "encoder": {"model_type": "wav2vec2", **FAMILIES["wav2vec2"]},
        "decoder": {"model_type": "bert", **ENCODER, "vocab_size": 96, "is_decoder": True, "add_cross_attention": True},
        "pad_token_id": 0,
        "decoder_start_token_id": 1,
    },
    "visual_bert": {**ENCODER, "vocab_size": 96, "visual_embedding_dim": 16},
}
"""Small fields of types with samples that few have: codes of sound, spoken text, phrases to look for in a picture."""
WITHOUT_GRADIENT = {
    "llava": 0.2,
    "llava_next": 0.2,
    "clip_vision_model": 0.01,
    "layoutlm": 0.01,
    "csm": 0.6,
    "decision_transformer": 0.01,
    "dinov3_vit": 0.01,
    "flava": 0.12,
    "gradium_phonon_tts": 0.01,
    "grounding-dino": 0.03,
    "luke": 0.03,
    "pop2piano": 0.02,
    "reformer": 0.01,
    "speech-encoder-decoder": 0.01,
}
"""The share of parameters, at most, that models of these types have and do not use: a tower's last layer, poolers, a
codec that only encodes."""


def create(model_type: str, **fields: Any) -> Any:
    definition = workloads.load(f"hf:{model_type}")
    values = {"seq_len": 16, "audio_samples": 4000, "picture_size": PICTURE_SIZES.get(model_type), **fields}
    return definition.create(definition.Config.model_validate(values))


def model_of(task: Any) -> Any:
    torch.manual_seed(0)
    return build_model(task._described, task._options)


@pytest.mark.parametrize("model_type", [*KINDS, *RARE])
def test_a_first_step_reaches_the_parameters(model_type: str) -> None:
    task = create(model_type, **{**KINDS, **RARE}[model_type])
    model, samples = model_of(task), task.dataset(seed=1)
    batch = task.collate([samples[0], samples[1]])
    state = torch.get_rng_state()
    loss = model(**batch).loss
    assert torch.equal(torch.get_rng_state(), state), "nothing is drawn"
    loss.backward()
    assert loss.isfinite()
    assert torch.equal(model(**batch).loss, loss)
    sizes = {name: p.numel() for name, p in model.named_parameters() if p.requires_grad}
    missing = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    share = sum(sizes[name] for name in missing) / sum(sizes.values())
    assert share <= WITHOUT_GRADIENT.get(model_type, 0), missing
    again, other = task.dataset(seed=1), task.dataset(seed=2)
    for name, value in samples[3].items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, again[3][name])
    assert any(isinstance(v, torch.Tensor) and not torch.equal(v, other[3][k]) for k, v in samples[3].items())


@pytest.mark.parametrize(("model_type", "labels"), [("bert", {"next_sentence_label"}), ("electra", set())])
def test_pretraining_has_its_own_labels(model_type: str, labels: set[str]) -> None:
    task = create(model_type, **ENCODER, vocab_size=96, task="PreTraining")
    model, samples = model_of(task), task.dataset(seed=1)
    batch = task.collate([samples[0], samples[1]])
    assert batch.keys() == {"input_ids", "labels", *labels}
    assert model(**batch).loss.isfinite()


@pytest.mark.parametrize(
    ("model_type", "tokens"), [("llava", 16), ("gemma3", 4), ("qwen2_vl", 16), ("idefics3", 4), ("paligemma", 16)]
)
def test_tokens_that_stand_for_a_picture_are_as_many_as_the_tower_makes(model_type: str, tokens: int) -> None:
    """(32/8)^2 patches, four of which idefics3 and gemma3 join; qwen2_vl joins four of (32/4)^2."""
    task = create(model_type, **KINDS[model_type])
    sample = task.dataset(seed=1)[0]
    placeholders = sample["input_ids"] == 90
    assert placeholders.sum() == tokens
    assert len(sample["input_ids"]) == 16 + tokens == task.tokens_per_sample()
    assert torch.equal(sample["labels"] == -100, placeholders), "what stands for a picture is no label"


def test_dropout_is_off_also_in_configs_inside_the_config() -> None:
    text = {**PAIR["text_config"], "attention_dropout": 0.5}
    task = create("clip", **{**PAIR, "text_config": text})
    assert model_of(task).text_model.config.attention_dropout == 0


@pytest.mark.parametrize(
    "model_type", ["mamba2", "bamba", "rwkv", "cvt", "gemma4_text", "codegen", "fastspeech2_conformer_with_hifigan"]
)
def test_the_defaults_of_a_type_are_taken(model_type: str) -> None:
    """Infinity among them, lists of drop rates, no token for padding, and fields that vary by layer."""
    description = Description.model_validate_json(read(model_type).model_dump_json())
    options = workloads.load(f"hf:{model_type}").Config()
    stored = type(options).model_validate(json.loads(options.model_dump_json()))
    assert stored == options
    assert config_of(description, stored).model_type == model_type


@pytest.mark.parametrize(
    ("model_type", "fields", "message"),
    [
        ("sam_mask_decoder", {}, "it is a part of others"),
        ("sam_mask_decoder", {}, "hf:sam"),
        ("depth_anything", {}, "no class of 'depth_anything' in transformers computes a loss"),
        ("bark", {}, "no class of 'bark' in transformers computes a loss"),
        ("efficientloftr", {}, "no class of 'efficientloftr' in transformers computes a loss"),
        ("qwen2_5_vl_vision", {}, "bench has no samples for hidden_states, grid_thw"),
        ("blip-2", BLIP, "does not say which token stands for a part of the image"),
        ("llama", {"num_attention_heads": 3}, "LlamaConfig refuses these values"),
        ("clip", {**PAIR, "seq_len": 128}, "seq_len=128 is more than max_position_embeddings=77 of the model"),
        ("grounding-dino", {"num_labels": 6}, "no place for the 6 phrases to look for"),
    ],
)
def test_what_cannot_be_trained_is_refused_in_a_sentence(model_type: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        create(model_type, **fields).dataset(seed=1)
    assert message in str(error.value)


def test_what_forward_itself_raises_is_a_sentence() -> None:
    task = create("bert", **ENCODER, vocab_size=96, type_vocab_size=0)
    model, samples = model_of(task), task.dataset(seed=1)
    with pytest.raises(InputError) as error:
        Forward(task, model)(model, task.collate([samples[0]]))
    assert "BertForMaskedLM of bert fails on bench's samples for MaskedLM: RuntimeError: " in str(error.value)
    assert "or another task: CausalLM, TokenClassification" in str(error.value)


def test_a_package_that_is_missing_is_named() -> None:
    with pytest.raises(InputError, match="requires the natten library"):
        model_of(create("dinat"))


def test_checkpointing_is_refused_where_transformers_has_none() -> None:
    assert workloads.load("hf:vit").Config(grad_ckpt=True).grad_ckpt
    with pytest.raises(ValidationError, match="has no gradient checkpointing"):
        workloads.load("hf:resnet").Config(grad_ckpt=True)
