"""Tiny models of transformers, one or more for each task that bench has samples for."""

from typing import Any

ENCODER = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
TEXT = {**ENCODER, "vocab_size": 96}
CONVOLUTIONS = {"conv_dim": [32, 32], "conv_stride": [8, 8], "conv_kernel": [16, 16]}
GROUPED = {**TEXT, "num_key_value_heads": 1}
ENCODER_DECODER = {"vocab_size": 96, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2}
HEADS = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
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


DECODER = {**ENCODER, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 96, "pad_token_id": 0}
PICTURE = {**ENCODER, "image_size": 32, "patch_size": 8}
PAIR = {"text_config": {**ENCODER, "vocab_size": 96, "eos_token_id": 2}, "vision_config": PICTURE, "projection_dim": 16}
TINY_RESNET = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 8, 8, 16], "depths": [1, 1, 1, 1]}
GRID = {"depth": 2, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2}
ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
SERIES = {"prediction_length": 4, "context_length": 8, "lags_sequence": [1, 2], "num_time_features": 2, "d_model": 16}
LAYERS = {"encoder_layers": 1, "decoder_layers": 1}

KINDS: dict[str, dict[str, Any]] = {
    "llava": {
        "text_config": {**DECODER, "model_type": "llama"},
        "vision_config": {**PICTURE, "model_type": "clip_vision_model"},
        "image_token_index": 90,
    },
    "llava_next": {
        "text_config": {**DECODER, "model_type": "llama"},
        "vision_config": {**PICTURE, "model_type": "clip_vision_model"},
        "image_token_index": 90,
        "image_grid_pinpoints": [[32, 64], [64, 32]],
    },
    "paligemma": {
        "text_config": {**DECODER, "model_type": "gemma"},
        "vision_config": {**PICTURE, "model_type": "siglip_vision_model", "vision_use_head": False},
        "image_token_index": 90,
        "projection_dim": 32,
    },
    "gemma3": {
        "text_config": DECODER,
        "vision_config": {**PICTURE, "vision_use_head": False},
        "image_token_index": 90,
        "mm_tokens_per_image": 4,
    },
    "qwen2_vl": {
        "text_config": {**DECODER, "rope_parameters": ROPE},
        "vision_config": {**GRID, "embed_dim": 32, "hidden_size": 32},
        "image_token_id": 90,
        "video_token_id": 91,
    },
    "qwen3_vl": {
        "text_config": {**DECODER, "rope_parameters": ROPE},
        "vision_config": {**GRID, **ENCODER, "out_hidden_size": 32, "deepstack_visual_indexes": [0]},
        "image_token_id": 90,
        "video_token_id": 91,
    },
    "idefics3": {
        "text_config": {**DECODER, "model_type": "llama"},
        "vision_config": PICTURE,
        "image_token_id": 90,
        "scale_factor": 2,
    },
    "clip": PAIR,
    "siglip": {name: PAIR[name] for name in ("text_config", "vision_config")},
    "detr": {
        "backbone_config": {**TINY_RESNET, "out_features": ["stage4"]},
        **LAYERS,
        "d_model": 32,
        "num_queries": 6,
        "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
    },
    "mobilevit": {"image_size": 64},
    "segformer": {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "decoder_hidden_size": 16},
    "time_series_transformer": {**SERIES, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, **LAYERS},
    "audio-spectrogram-transformer": {**ENCODER, "max_length": 64, "num_mel_bins": 32},
    "layoutlm": {**ENCODER, "vocab_size": 96},
    "videomae": {**PICTURE, "num_frames": 4},
    "clip_vision_model": PICTURE,
}
"""Small fields of types, one or more for each kind of sample."""

MORE: dict[str, dict[str, Any]] = {
    "roberta": TEXT,
    "deberta-v2": TEXT,
    "electra": {**TEXT, "embedding_size": 16},
    "albert": {**TEXT, "embedding_size": 16, "num_hidden_groups": 2},
    "xlm-roberta": TEXT,
    "modernbert": {**TEXT, **SPECIAL},
    "opt": {
        "vocab_size": 96,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "ffn_dim": 64,
        "word_embed_proj_dim": 32,
    },
    "deit": {**PICTURE, "num_labels": 10},
    "beit": {**PICTURE, "num_labels": 10},
    "dinov2": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 32,
        "patch_size": 8,
        "num_labels": 10,
    },
    "gpt_neox": TEXT,
    "gemma2": DECODER,
    "qwen3": DECODER,
    "phi3": {**GROUPED, **SPECIAL},
    "olmo2": GROUPED,
    "qwen3_moe": {**GROUPED, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "mamba2": {
        "vocab_size": 96,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_heads": 4,
        "head_dim": 16,
        "n_groups": 1,
        "state_size": 8,
        "chunk_size": 8,  # products in a chunk are fp32 by design, and few
    },
    "swin": {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "image_size": 32, "window_size": 4},
    "hubert": {**TEXT, **CONVOLUTIONS, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2},
}
"""Small fields of more types that people train."""


FP32 = ("detr", "mobilevit")
"""Types that torch does not train in bf16 parameters: it has no `cdist` in bf16, nor BatchNorm with a mixture."""

PICTURE_SIZES = {"qwen2_vl": 32, "qwen3_vl": 32, "segformer": 64, "detr": 64}
"""Of types whose config has no size of a picture."""


def workload(model_type: str, **options: Any) -> dict[str, Any]:
    """The matrix's ``workload`` for one of the families."""
    lengths = {"seq_len": 16, "audio_samples": 4000, "picture_size": PICTURE_SIZES.get(model_type)}
    fields = {**FAMILIES, **KINDS, **MORE}[model_type]
    return {"name": f"hf:{model_type}", **lengths, "config": fields, **options}
