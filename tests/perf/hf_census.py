"""Which model types of transformers `hf:` trains: a small model of each takes a step on bench's own samples.

``python tests/perf/hf_census.py --out FOLDER`` writes ``hf_census.json`` and ``hf_census.md``; about 15 minutes on two
cores. ``--only llava,detr`` runs these types alone.

A type counts if transformers has a class of it whose forward computes a loss. Outcomes:

- ok: a finite loss, and a finite gradient for each trainable parameter.
- told: the same, but backward does not reach some parameters. Their share is given; bench tells it in its reports.
- unreached: the same, and they are more than a tenth of the parameters.
- refused: bench says in a sentence why not.
- error: any other exception, which a user would see as a traceback.

A small model has the type's defaults with two layers, a small vocabulary and small pictures. Its widths and heads are
divided by a common factor of the heads. A type that this breaks is tried with its own widths.
"""

import argparse
import dataclasses
import json
import math
import multiprocessing
import os
import re
import resource
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.auto import configuration_auto, modeling_auto

from bench import workloads
from bench.errors import InputError
from bench.runner.forward import Forward
from bench.workloads.huggingface import samples as _  # noqa: F401  # so that no child imports it
from bench.workloads.huggingface.description import computes_loss
from bench.workloads.huggingface.model import build_model

VOCABULARY = 512
TIME_LIMIT_S = 90
MEMORY_LIMIT = 6 * 2**30
SEQ_LEN = 32
LAYERS = re.compile(r"(^|_)layers?$|^(depth|n_layers?|num_blocks|encoder_depth|decoder_depth)$")
WIDTHS = re.compile(
    r"(^|_)(hidden_size|d_model|n_embd|embed_dim|hidden_dim|intermediate_size|ffn_dim|d_ff|(?<!head_)(?<!rope_)dim|d_inner|emb_dim|"
    r"encoder_hidden_size|embedding_size|out_dim|n_inner|projection_dim|out_hidden_size|attention_hidden_size|feedforward_dim|lru_width)$"
)
HEADS = re.compile(r"(^|_)(heads|n_head|num_key_value_heads|n_heads|num_kv_heads)$")
LETTERS = str.maketrans("0123456789", "ABCDEFGHIJ")
"""How Chameleon writes the codes of a picture."""
RESNET = {"model_type": "resnet", "hidden_sizes": [32, 32, 64, 64], "embedding_size": 32, "depths": [1, 1, 1, 1]}
START = {"pad_token_id": 0, "decoder_start_token_id": 1}
HUNYUAN = {"head_dim": 32}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
GLM = {"head_dim": 64, "rope_parameters": {**ROPE, "mrope_section": [8, 12, 12]}}
GLM_MOE = {"head_dim": 64, "rope_parameters": {**ROPE, "partial_rotary_factor": 0.5, "mrope_section": [4, 6, 6]}}
DOTS = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 64,
    "moe_intermediate_size": 64,
    "shared_experts_intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "index_n_heads": 2,
    "index_head_dim": 32,
}
NEMOTRON_H = {
    "hidden_size": 64,
    "layers_block_type": ["mamba", "moe", "attention"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 64,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "ssm_state_size": 16,
    "moe_intermediate_size": 64,
    "moe_shared_expert_intermediate_size": 64,
    "n_routed_experts": 4,
}
MIMI = {
    "model_type": "mimi",
    "hidden_size": 64,
    "upsample_groups": 64,
    "num_filters": 4,
    "codebook_dim": 16,
    "vector_quantization_hidden_dimension": 16,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "codebook_size": 64,
    "num_hidden_layers": 2,
}
COMPASS = {"rope_parameters": {"full_attention": ROPE}}
OWN: dict[str, dict[str, Any]] = {
    # With one head, oneDNN crashes in the backward of its convolution: 65 wide, over 32 tokens, without bench as well.
    "nystromformer": {"num_attention_heads": 4},
    **{
        key: {"backbone_config": {**RESNET, "out_features": ["stage4"]}}
        for key in ("detr", "conditional_detr", "deformable_detr", "dab-detr", "table-transformer")
    },
    **{
        key: {"prediction_length": 8, "context_length": 16}
        for key in ("autoformer", "informer", "time_series_transformer")
    },
    "aria": {"projector_patch_to_query_dict": {"16": 4}},
    "emu3": {
        "vocabulary_map": {
            "<image>": 5,
            "<|extra_200|>": 6,
            **{f"<|visual token {code:06d}|>": 100 + code for code in range(16)},
        },
        "vq_config": {
            "codebook_size": 16,
            "base_channels": 32,
            "channel_multiplier": [1, 1, 1, 1],
            "num_res_blocks": 1,
            "hidden_size": 32,
        },
    },
    **{key: {"attention_type": "original_full"} for key in ("big_bird", "bigbird_pegasus")},
    "instructblip": {"image_token_index": 5},
    "instructblipvideo": {"video_token_index": 5},
    "blip-2": {"image_token_index": 5},
    "chameleon": {
        "vocabulary_map": {
            "<image>": 5,
            **{f"IMGIMG{code // 10:d}{code % 10:d}Z".translate(LETTERS): 100 + code for code in range(16)},
        },
        "vq_config": {
            "num_embeddings": 16,
            "base_channels": 32,
            "channel_multiplier": [1, 1, 1, 1],
            "num_res_blocks": 1,
            "embed_dim": 32,
            "latent_channels": 32,
        },
    },
    "deepseek_v2": {"num_experts_per_tok": 2, "n_routed_experts": 8, "moe_intermediate_size": 64},
    "deepseek_v32": {"q_lora_rank": 256},
    "deepseek_ocr2": {
        "text_config": {
            "hidden_size": 64,
            "intermediate_size": 64,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "moe_intermediate_size": 64,
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "head_dim": 16,
            "mlp_layer_types": ["dense", "sparse"],
        },
        "vision_config": {
            "model_type": "deepseek_ocr2_vision",
            "encoder_config": {
                "model_type": "deepseek_ocr2_encoder",
                "hidden_size": 896,
                "intermediate_size": 256,
                "num_attention_heads": 8,
                "num_key_value_heads": 2,
                "num_hidden_layers": 1,
                "vocab_size": VOCABULARY,
            },
        },
    },
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "clip_qkv": 8.0}},
    "clvp": {
        "speech_config": {"vocab_size": VOCABULARY},
        "decoder_config": {
            "hidden_size": 32,
            "num_attention_heads": 2,
            "num_mel_attn_blocks": 1,
            "num_hidden_layers": 1,
            "vocab_size": VOCABULARY,
            "max_position_embeddings": 64,
            "max_text_tokens": 64,
        },
    },
    "gpt_neo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]]},
    **dict.fromkeys(("hunyuan_v1_dense", "hunyuan_v1_moe", "hunyuan_vl_text"), HUNYUAN),
    "hunyuan_vl": {"text_config": {**HUNYUAN, "rope_parameters": {**ROPE, "mrope_section": [4, 4, 4, 4]}}},
    **{key: {"text_config": GLM} for key in ("glm4v", "glm46v", "glmga")},
    "glm4v_text": GLM,
    "glm4v_moe": {"text_config": GLM_MOE},
    "glm4v_moe_text": GLM_MOE,
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "gemma3n": {"text_config": {"num_kv_shared_layers": 0}},
    "dots3_note_text": DOTS,
    "dots3_note": {
        "text_config": DOTS,
        "vision_config": {
            "adapter_out_dim": 64,
            "num_hidden_layers": 2,
            "mlp_layer_types": ["dense", "sparse"],
            "num_local_experts": 4,
            "moe_intermediate_size": 64,
        },
        "audio_config": {"adapter_out_dim": 64, "adapter_input_size": 64, "hidden_size": 64, "num_attention_heads": 4},
    },
    "csm": {"codec_config": MIMI},
    "seggpt": {"merge_index": 0},
    **{
        key: {"projector_config": {"model_type": "blip_2_qformer", "encoder_hidden_size": 256}}
        for key in ("granite_speech", "granite_speech_plus")
    },
    "qwen3_asr": {
        "audio_config": {"output_dim": 64},
        "text_config": {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4},
    },
    "diffusion_gemma": {"text_config": {"num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 64}},
    "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},
    "dots1": {"num_experts_per_tok": 2, "n_routed_experts": 8, "n_shared_experts": 1},
    **{
        key: {"num_queries": 10, "query_dim": 4, "text_config": {"model_type": "bert", "vocab_size": 1024}}
        for key in ("grounding-dino", "mm-grounding-dino")
    },
    "llama4": {
        "vision_config": {
            "hidden_size": 64,
            "intermediate_size": 256,
            "num_attention_heads": 4,
            "vision_output_dim": 64,
            "projector_input_dim": 64,
            "projector_output_dim": 64,
        }
    },
    "ovis2": {
        "hidden_size": 64,
        "text_config": {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 64},
    },
    **{key: {"image_grid_pinpoints": [[56, 112], [112, 56]]} for key in ("llava_onevision", "llava_next_video")},
    "granite_docling": {"vision_config": {"use_fine_route": False, "deepstack_visual_indexes": [1]}},
    "inkling_mm_model": {"audio_config": {"n_mel_bins": 8, "mel_vocab_size": 16}},
    "granite4_vision": {
        "image_grid_pinpoints": [[128, 256], [256, 128]],
        "downsample_rate": "1/2",
        "deepstack_layer_map": [[-1, 0]],
        "spatial_target_layers": [1],
    },
    "nemotron": {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16},
    "ministral": {"head_dim": 128},
    "lfm2_moe": {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]},
    "vipllava": {"vision_feature_layer": [-1, -2]},
    "molmo2": {"adapter_config": {"vision_feature_layer": [1, 0]}},
    "muse_spark": {"audio_samples": 19200, "audio_config": {"num_hidden_layers": 4}},
    "zamba": {"num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2},
    "zamba2": {"num_hidden_layers": 2, "layers_block_type": ["linear_attention", "hybrid"]},
    "wav2vec2-conformer": {"vocab_size": 64},
    "xmod": {"default_language": "en_XX"},
    "qwen2_vl": {
        "vision_config": {"hidden_size": 64, "embed_dim": 64, "num_heads": 4},
        "text_config": {
            "hidden_size": 64,
            "intermediate_size": 64,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "rope_parameters": {**ROPE, "mrope_section": [2, 3, 3]},
        },
    },
    "reformer": {
        "axial_pos_shape": [4, 8],
        "axial_pos_embds_dim": [32, 32],
        "hidden_size": 64,
        "num_attention_heads": 2,
        "attention_head_size": 32,
        "feed_forward_size": 64,
        "attn_layers": ["local", "lsh"],
    },
    "perceiver": {"num_latents": 8, "d_latents": 64, "d_model": 64},
    **{key: {"seq_len": 16} for key in ("owlvit", "owlv2")},
    **{key: {"image_token_id": 5} for key in ("minicpm_ocr", "minicpmv4_6", "minicpmv4_7")},
    "kyutai_speech_to_text": {"codec_config": MIMI},
    **{
        key: {"audio_encoder": {"model_type": "encodec", "num_filters": 4, "hidden_size": 32, "codebook_size": 64}}
        for key in ("musicgen", "musicgen_melody")
    },
    "modernvbert": {"vision_config": {"vision_use_head": False}},
    "step3p7": {"text_config": {"sliding_window": 16}},
    "lw_detr": {
        "backbone_config": {"model_type": "lw_detr_vit", "out_indices": [1, 2], "num_hidden_layers": 2},
        "projector_scale_factors": [1.0],
        "num_queries": 10,
    },
    "rf_detr": {"num_queries": 10},
    "nemotron_h": NEMOTRON_H,
    "nemotron_h_omni": {"image_token_id": 5, "text_config": NEMOTRON_H},
    "qwen3_omni_moe_thinker": {
        "vision_config": {"deepstack_visual_indexes": [1], "hidden_size": 64, "intermediate_size": 64, "num_heads": 4},
        "text_config": {
            "hidden_size": 64,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "rope_parameters": {**ROPE, "mrope_section": [2, 3, 3]},
        },
    },
    "pe_audio": {"audio_samples": 19200, "audio_config": {"dac_config": {"encoder_hidden_size": 16}}},
    "qwen3_vl_moe": {"vision_config": {"deepstack_visual_indexes": [1]}},
    "sapiens2": {"head_config": {"upsample_out_channels": [32], "conv_out_channels": [32]}},
    "voxtral": {"audio_token_id": 5},
    "janus": {
        "vision_config": {"projection_dim": 64},
        "text_config": {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4},
        "vq_config": {
            "num_embeddings": 16,
            "base_channels": 32,
            "channel_multiplier": [1, 1],
            "num_res_blocks": 1,
            "embed_dim": 8,
            "latent_channels": 32,
            "projection_dim": 32,
        },
    },
    "wav2vec2-bert": {"vocab_size": 64},
    "moonshine": START,
    "falcon": {"num_attention_heads": 8, "hidden_size": 256},
    "codegen": {"n_head": 4, "n_embd": 64, "rotary_dim": 8},
    "cohere_compass_text": COMPASS,
    "cohere_compass": {"text_config": COMPASS},
    "aya_vision": {"vision_config": {"model_type": "siglip_vision_model", "num_attention_heads": 8}},
    "mllama": {"text_config": {"model_type": "mllama_text_model", "cross_attention_layers": [1]}},
    "encoder-decoder": {
        "encoder": {"model_type": "bert"},
        "decoder": {"model_type": "bert", "is_decoder": True, "add_cross_attention": True},
        **START,
    },
    "vision-encoder-decoder": {
        "encoder": {"model_type": "vit"},
        "decoder": {"model_type": "bert", "is_decoder": True, "add_cross_attention": True},
        **START,
    },
    "speech-encoder-decoder": {
        "encoder": {"model_type": "wav2vec2"},
        "decoder": {"model_type": "bert", "is_decoder": True, "add_cross_attention": True},
        **START,
    },
    "vision-text-dual-encoder": {"vision_config": {"model_type": "vit"}, "text_config": {"model_type": "bert"}},
}
"""Types whose small model follows from no rule."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("reports"))
    parser.add_argument("--only", default="")
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["HF_HUB_OFFLINE"] = "1"
    types = [name for name in arguments.only.split(",") if name] or list(configuration_auto.CONFIG_MAPPING_NAMES)
    arguments.out.mkdir(exist_ok=True, parents=True)
    found = dict(sorted(run(types, arguments.workers)))
    (arguments.out / "hf_census.json").write_text(json.dumps(found, indent=1) + "\n")
    (arguments.out / "hf_census.md").write_text(table(found))
    print(table(found).split("\n\n")[1])


def run(types: list[str], workers: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each type in a process of its own, forked with torch and transformers imported."""
    context, waiting = multiprocessing.get_context("fork"), list(types)
    running: dict[str, Any] = {}
    while waiting or running:
        while waiting and len(running) < workers:
            name = waiting.pop(0)
            ours, theirs = context.Pipe(duplex=False)
            child = context.Process(target=_in_child, args=(name, theirs))
            child.start()
            theirs.close()
            running[name] = (child, ours, time.monotonic())
        for name, (child, pipe, started) in list(running.items()):
            late = time.monotonic() - started > TIME_LIMIT_S
            if not (pipe.poll(0.02) or late or not child.is_alive()):
                continue
            try:
                record = pipe.recv() if pipe.poll(0) else {"outcome": "error", "why": f"over {TIME_LIMIT_S} s"}
            except EOFError:
                child.join()
                record = {"outcome": "error", "why": f"the process ended with {child.exitcode}"}
            if child.is_alive():
                child.kill()
            child.join()
            del running[name]
            record.setdefault("classes", losses(name))
            record["seconds"] = round(time.monotonic() - started, 1)
            print(f"{name}: {record['outcome']} {record.get('task', '')} {record.get('why', '')[:600]}", flush=True)
            yield name, record


def _in_child(model_type: str, pipe: Any) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_LIMIT, MEMORY_LIMIT))
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 2)
    try:
        pipe.send(census(model_type))
    except BaseException as error:  # whatever it is, it is what a user would get
        pipe.send({"outcome": "error", "why": _words(error)})
    pipe.close()
    os._exit(0)


def census(model_type: str) -> dict[str, Any]:
    """The best outcome over the ways to make it small."""
    record: dict[str, Any] = {"classes": losses(model_type)}
    tried: list[dict[str, Any]] = []
    for scaled in (True, False):
        try:
            fields = small(model_type, scaled)
        except Exception as error:  # the config class has no defaults
            fields = OWN.get(model_type, {})
            tried.append({"outcome": "error", "why": "shrinking: " + _words(error)} if not fields else {"outcome": "-"})
        try:
            tried.append(step(model_type, fields))
        except (InputError, ImportError) as error:  # the latter names the package that is missing
            tried.append({"outcome": "refused", "why": str(error)})
        except Exception as error:
            tried.append({"outcome": "error", "why": _words(error)})
        tried[-1]["scaled"] = scaled
        if tried[-1]["outcome"] in ("ok", "told") or "no class of" in tried[-1].get("why", ""):
            break
    order = ("ok", "told", "unreached", "refused", "error", "-")
    best = min(tried, key=lambda one: order.index(one["outcome"]))
    whys = [one["why"] for one in tried if "why" in one]
    return record | best | ({"why": " // ".join(whys)} if best["outcome"] in ("refused", "error") else {})


def losses(model_type: str) -> list[str]:
    """Classes of this type that compute a loss."""
    names: dict[str, None] = {}
    for mapping in dir(modeling_auto):
        if mapping.endswith("_MAPPING_NAMES") and mapping != "CONFIG_MAPPING_NAMES":
            found = getattr(modeling_auto, mapping).get(model_type, ())
            names |= dict.fromkeys((found,) if isinstance(found, str) else found)
    package = configuration_auto.model_type_to_module_name(model_type)
    return [name for name in names if computes_loss(package, name)]


def step(model_type: str, fields: dict[str, Any]) -> dict[str, Any]:
    """One step as bench does it."""
    definition = workloads.load(f"hf:{model_type}")
    options: Any = definition.Config.model_validate({"seq_len": SEQ_LEN, "audio_samples": 16000, **fields})
    task: Any = definition.create(options)
    torch.manual_seed(0)
    model = build_model(task._described, task._options)
    samples = task.dataset(seed=0)
    collate = getattr(task, "collate", None) or torch.utils.data.default_collate
    batch = collate([samples[0], samples[1]])
    before = torch.get_rng_state()
    loss: Any = Forward(task, model)(model, batch)["loss"]
    random = not torch.equal(before, torch.get_rng_state())
    loss.backward()
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    total = sum(p.numel() for p in trained.values())
    missing = [name for name, p in trained.items() if p.grad is None]
    share = sum(trained[name].numel() for name in missing) / total
    record: dict[str, Any] = {"task": options.task, "class": type(model).__name__, "parameters": total}
    record |= {"missing": share, "names": _prefixes(missing), "loss": float(loss.detach())}
    record["checkpointing"] = bool(model.supports_gradient_checkpointing)
    record["batchnorm"] = any("BatchNorm" in type(module).__name__ for module in model.modules())
    finite = loss.isfinite() and all(p.grad.isfinite().all() for p in trained.values() if p.grad is not None)
    if random or not finite:
        return {**record, "outcome": "error", "why": "forward draws random numbers" if random else "not finite"}
    return record | {"outcome": "ok" if not missing else "told" if share <= 0.1 else "unreached"}


def _prefixes(names: list[str]) -> list[str]:
    return list(dict.fromkeys(re.sub(r"\.\d+\..*", "", ".".join(name.split(".")[:3])) for name in names))[:6]


def small(model_type: str, scaled: bool) -> dict[str, Any]:
    """The fields of a small model of this type, as a matrix would set them."""
    config = configuration_auto.CONFIG_MAPPING[model_type](**OWN.get(model_type, {}))
    factor = common_factor(config) if scaled else 1
    own = OWN.get(model_type, {})
    fields = {**own, **shrink(config, factor, {})}
    for name, value in own.items():
        nested_too = isinstance(value, dict) and isinstance(fields[name], dict)
        fields[name] = {**fields[name], **value} if nested_too and "hidden_sizes" not in value else value
    vision: Any = getattr(config, "vision_config", None)
    text: Any = getattr(config, "text_config", None)
    if hasattr(vision, "out_hidden_size") and hasattr(text, "hidden_size"):
        width = shrunk("hidden_size", text.hidden_size, factor, None, {})
        fields["vision_config"] = {**fields.get("vision_config", {}), "out_hidden_size": width}
    return fields


def common_factor(config: Any) -> int:
    """The largest number up to 16 that divides the heads of the config and of those in it."""
    heads = [
        value
        for part in nested(config)
        for name, value in part.to_dict().items()
        if HEADS.search(name) and isinstance(value, int) and value > 1
    ]
    common = math.gcd(*heads) if heads else 16
    return max(factor for factor in range(1, 17) if common % factor == 0)


def nested(config: Any) -> Iterator[Any]:
    yield config
    for value in vars(config).values():
        if isinstance(value, transformers.PreTrainedConfig):
            yield from nested(value)


def shrink(config: Any, factor: int, ids: dict[int, int]) -> dict[str, Any]:
    """What to change in a config, with those in it."""
    changed: dict[str, Any] = {}
    patch = 56 if "window_size" in vars(config) else vars(config).get("patch_size")
    taken = [max(value) for name, value in vars(config).items() if name.endswith("out_indices") and value]
    for field in dataclasses.fields(config):
        name, value = field.name, value_of(config, field.name)
        if isinstance(value, transformers.PreTrainedConfig):
            changed[name] = {**special(value), "model_type": value.model_type, **shrink(value, factor, ids)}
        elif name == "cross_attention_layers":
            changed[name] = [1]
        elif isinstance(value, bool) or name.startswith("_"):
            continue
        elif isinstance(value, int):
            new = shrunk(name, value, factor, patch, ids)
            if "_heterogeneity_spec" in vars(config) and LAYERS.search(name):
                continue
            if LAYERS.search(name) and taken:
                new = min(value, max(2, taken[0] + 1))
            if new != value:
                changed[name] = new
        elif name == "image_size" and isinstance(value, (list, tuple)) and len(value) == 2:
            changed[name] = [picture(patch)] * 2
        elif (name == "depths" and isinstance(value, (list, tuple))) or (
            re.search(r"(indexes|(?<!out_)indices|layer_ids|index)$", name) and _indices(value)
        ):
            changed[name] = [min(1, v) for v in value]
    return changed


def _indices(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(v, int) for v in value) and max(value, default=0) > 1


def special(config: Any) -> dict[str, Any]:
    """What a config inside another has other than its own class, but for what follows from its number of layers."""
    try:
        plain = type(config)()
    except Exception:  # the class has no defaults
        return {}
    values = {field.name: value_of(config, field.name) for field in dataclasses.fields(config)}
    taken = {"out_indices": list(config.out_indices)} if vars(config).get("_out_indices") else {}
    layers = [value for name, value in values.items() if LAYERS.search(name) and isinstance(value, int)]
    return taken | {
        name: value
        for name, value in values.items()
        if isinstance(value, bool | int | float | str | list | tuple | dict)
        and value != value_of(plain, name)
        and not name.startswith(("_", "id2label", "label2id"))
        and not (isinstance(value, list | tuple) and len(value) in layers)
    }


def value_of(config: Any, name: str) -> Any:
    """A field under its own name, also where a config has another for it, or one value a layer."""
    return vars(config).get(name) if name in vars(config) else getattr(config, name, None)


def picture(patch: Any) -> int:
    if not isinstance(patch, int):
        return 64
    side = 4 * patch
    return side if side >= 56 else side * math.ceil(64 / side)


def shrunk(name: str, value: int, factor: int, patch: Any, ids: dict[int, int]) -> int:  # noqa: PLR0911  # a list of rules
    if re.search(r"(token_id|token_index|token|_id)$", name) and value >= VOCABULARY - 64:
        return ids.setdefault(value, VOCABULARY - 64 + len(ids))
    if "vocab_size" in name or name.endswith("_vocab"):
        return min(value, VOCABULARY)
    if name == "image_size":
        return picture(patch)
    if name == "mm_tokens_per_image":
        return 4
    if name == "max_source_positions":
        return min(value, 100)
    if LAYERS.search(name):
        return min(value, 2)
    if re.fullmatch(r"(num_(local_|routed_)?experts|n_routed_experts|moe_num_experts)", name):
        return min(value, 8)
    if name == "num_experts_per_tok":
        return min(value, 2)
    if name in ("n_group", "topk_group", "first_k_dense_replace"):
        return min(value, 1)
    if (WIDTHS.search(name) or (HEADS.search(name) and value > 1)) and value % factor == 0:
        return value // factor
    return value


def table(found: dict[str, dict[str, Any]]) -> str:
    """Markdown: counts, then a row for each type that counts and is not ok."""
    counted = {name: one for name, one in found.items() if one.get("classes")}
    counts = Counter(one["outcome"] for one in counted.values())
    right = counts["ok"] + counts["told"]
    lines = [f"# Types of transformers {transformers.__version__} that `hf:` trains", ""]
    lines += [
        f"{len(found)} types, {len(counted)} with a class that has a loss: {right} ok or told "
        f"({right / max(1, len(counted)):.1%}); {', '.join(f'{n} {outcome}' for outcome, n in counts.most_common())}.",
        "",
    ]
    others = Counter(one["outcome"] for one in found.values() if not one.get("classes"))
    lines += [f"Without a class that has a loss: {dict(others)}", ""]
    lines += [
        "| type | outcome | task | parameters | without gradient | what |",
        "| --- | --- | --- | ---: | ---: | --- |",
    ]
    for name, one in found.items():
        what = one.get("why") or ", ".join(one.get("names", []))
        what = what.replace("|", "/").replace("\n", " ")[:300]
        lines.append(
            f"| {name} | {one['outcome']} | {one.get('task', '')} | {one.get('parameters', ''):} | "
            + (f"{one['missing']:.1%}" if one.get("missing") else "")
            + f" | {what} |"
        )
    return "\n".join(lines) + "\n"


def _words(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-2:]
    where = " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(last))
    return f"{type(error).__name__}: {str(error).strip()[:400]} ({where})"


if __name__ == "__main__":
    main()
