"""`make perf-plan-families`: whether bench plan predicts the memory of models that others designed.

Each family is planned and measured on two CPU ranks, and its counted peak compared with the plan's. The table is
printed. Runs are kept in the folder that is named, and resumed.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import yaml
from plan_table import HEAD, checked, line

from bench.units import percent

LORA = str(Path(__file__).parent / "plans" / "lora.py")
TEXT = {"num_hidden_layers": 4, "hidden_size": 256, "intermediate_size": 688, "num_attention_heads": 4}
GROUPED = {**TEXT, "num_key_value_heads": 2, "head_dim": 64}
VISION = {"num_hidden_layers": 3, "hidden_size": 192, "intermediate_size": 512, "num_attention_heads": 3}
FAMILIES: dict[str, dict[str, Any]] = {
    "bert": {"name": "hf:bert", "seq_len": 128, "config": {**TEXT, "vocab_size": 8192}},
    "vit": {
        "name": "hf:vit",  # ViT-S/16: of a smaller one, the workspace of oneDNN's convolution is a large share
        "config": {"num_hidden_layers": 12, "hidden_size": 384, "intermediate_size": 1536, "num_attention_heads": 6},
    },
    "whisper": {
        "name": "hf:whisper",
        "seq_len": 32,
        "config": {
            "d_model": 256,
            "encoder_layers": 3,
            "decoder_layers": 3,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 688,
            "decoder_ffn_dim": 688,
            "max_source_positions": 200,
            "vocab_size": 8192,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 3,
        },
    },
    "qwen3_moe": {
        "name": "hf:qwen3_moe",
        "seq_len": 128,
        "config": {
            **GROUPED,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 256,
            "vocab_size": 8192,
        },
    },
    "mamba": {
        "name": "hf:mamba",
        "seq_len": 64,
        "config": {"num_hidden_layers": 3, "hidden_size": 192, "vocab_size": 8192},
    },
    "gemma3": {
        "name": "hf:gemma3",
        "seq_len": 96,
        "config": {
            "text_config": {**GROUPED, "vocab_size": 8192},
            "vision_config": {**VISION, "image_size": 112, "patch_size": 14},
            "mm_tokens_per_image": 16,
        },
    },
    "llava": {
        "name": "hf:llava",
        "seq_len": 96,
        "config": {
            "text_config": {"model_type": "llama", **GROUPED, "vocab_size": 8192},
            "vision_config": {"model_type": "clip_vision_model", **VISION, "image_size": 112, "patch_size": 14},
            "image_token_index": 8000,
        },
    },
    "llama-adapters": {
        "name": "hf:llama",
        "seq_len": 96,
        "config": {**GROUPED, "vocab_size": 8192},
        "lora": {"r": 8},
    },
    "bert-adapters": {"name": "hf:bert", "seq_len": 128, "config": {**TEXT, "vocab_size": 8192}, "lora": {"r": 8}},
    "LoRA": {"name": f"{LORA}:transformer", "rank": 8},
    "autocast": {"name": f"{LORA}:transformer", "rank": 0},
    "micro-batches": {"name": f"{LORA}:transformer", "rank": 0},
}
ALL = ["single", "ddp", "fsdp", "fsdp_grad_op", "fsdp2", "zero1", "zero2", "zero3"]
BACKENDS = {
    "llama-adapters": ALL,
    "bert-adapters": ALL,
    "autocast": ["single", "ddp"],
    "micro-batches": ALL[1:],
}
EACH = {"zero1", "zero2", "zero3", "ddp"}
"""Backends of which the two ways to reduce hold the same, or one does not exist."""
MORE: dict[str, dict[str, Any]] = {
    "micro-batches": {
        "matrix": {"mixed_precision": ["no", "bf16"], "accumulate": 2, "accumulate_sync": [None, "each"], "batch": 4},
        "exclude": [{"backend": backend, "accumulate_sync": "each"} for backend in sorted(EACH)],
    }
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the runs are kept")
    parser.add_argument("--only", nargs="*", default=list(FAMILIES), choices=list(FAMILIES))
    given = parser.parse_args()
    errors = []
    for family in given.only:
        run = given.folder / family
        run.mkdir(parents=True, exist_ok=True)
        backends, more = BACKENDS.get(family, ["ddp", "fsdp2", "zero2", "zero3"]), MORE.get(family, {})
        matrix = {
            **more,
            "workload": FAMILIES[family],
            "matrix": {"backend": backends, "batch": [4, 8], **more.get("matrix", {})},
            "launch": {"num_processes": 2},
            "train": {"find_unused_parameters": True},  # towers have heads and layers that these models do not use
            "measure": {"warmup_steps": 2, "steps": 3, "phase_steps": 0, "count_tensors": True, "launches": 1},
        }
        file = given.folder / f"{family}.yaml"
        file.write_text(yaml.safe_dump(matrix))
        for command in (["run", str(file), "--out", str(run)], ["plan", "--check", str(run)]):
            subprocess.run([sys.executable, "-m", "bench.cli", *command], check=False, stdout=sys.stderr)
        rows = checked(run)
        off = [abs(row.error) for row in rows]
        errors += off
        print(f"\n## {family}: {len(rows)} peaks, median error {percent(median(off))}, worst {percent(max(off))}\n")
        print(HEAD, "| --- |" + " ---: |" * 8, *map(line, rows), sep="\n", flush=True)
    print(f"\n{len(errors)} peaks: median error {percent(median(errors))}, worst {percent(max(errors))}")


if __name__ == "__main__":
    main()
