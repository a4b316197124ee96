"""Tiny models of transformers, one or more for each task that bench has samples for."""

from typing import Any

ENCODER = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
TEXT = {**ENCODER, "vocab_size": 96}
CONVOLUTIONS = {"conv_dim": [32, 32], "conv_stride": [8, 8], "conv_kernel": [16, 16]}
GROUPED = {**TEXT, "num_key_value_heads": 1}
ENCODER_DECODER = {"vocab_size": 96, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2}
HEADS = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
START = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3}

FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 2},
    "llama": GROUPED,
    "qwen2": {**GROUPED, "tie_word_embeddings": True},
    "mixtral": {**GROUPED, "num_local_experts": 4},
    "bert": TEXT,
    "t5": {"vocab_size": 96, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2},
    "bart": {**ENCODER_DECODER, **HEADS, **START},
    "whisper": {**ENCODER_DECODER, **HEADS, **START, "num_mel_bins": 8, "max_source_positions": 20},
    "wav2vec2": {**TEXT, **CONVOLUTIONS, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2},
    "vit": {**ENCODER, "image_size": 32, "patch_size": 8, "num_labels": 10},
}
"""Fields of the config by model type."""


def workload(model_type: str, **options: Any) -> dict[str, Any]:
    """The matrix's ``workload`` for one of the families."""
    lengths = {"seq_len": 16, **({"audio_samples": 4000} if model_type == "wav2vec2" else {})}
    return {"name": f"hf:{model_type}", "config": FAMILIES[model_type], **lengths, **options}
