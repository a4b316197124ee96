"""The layers against transformers' own, with the weights copied over: Gemma 3, the first Gemma, SigLIP."""

import pytest
import torch
from torch import Tensor, nn
from transformers.models.gemma.modeling_gemma import GemmaConfig, GemmaDecoderLayer
from transformers.models.gemma3.modeling_gemma3 import Gemma3DecoderLayer, Gemma3TextConfig
from transformers.models.siglip.modeling_siglip import SiglipEncoderLayer, SiglipVisionConfig

from bench.model.attention import rotary_table
from bench.model.config import Pi07Config
from bench.model.interleaved import InterleavedLayer
from bench.model.vision import VisionLayer

GEMMA3 = Pi07Config(n_layers=6)
GEMMA = Pi07Config(n_layers=6, n_kv_heads=1, qk_norm=False, post_norms=False, global_every=0)


def sizes(config: Pi07Config) -> dict[str, int]:
    return {
        "hidden_size": config.backbone_hidden,
        "intermediate_size": config.backbone_mlp,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.n_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
    }


def randomize(module: nn.Module, std: float = 0.2) -> None:
    torch.manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=std)


def copy(theirs: nn.Module, ours: nn.Module, names: dict[str, str]) -> None:
    """Every parameter of theirs, under our names; ours has no others."""
    renamed = {}
    for theirs_name, value in theirs.state_dict().items():
        name = theirs_name
        for old, new in names.items():
            name = name.replace(old, new)
        renamed[name] = value
    ours.load_state_dict(renamed, strict=True)


def inputs(config: Pi07Config) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    x_BSD = torch.randn(2, 7, config.backbone_hidden)
    positions_BS = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [0, 0, 1, 2, 3, 4, 5]])
    mask_BSS = torch.ones(2, 7, 7, dtype=torch.bool).tril()
    mask_BSS[1, 1:, 0] = False
    return x_BSD, positions_BS, mask_BSS


def doubled(table: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    cos, sin = (torch.cat((part, part), -1)[:, 0] for part in table)
    return cos, sin


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize(("index", "base"), [(0, 1e4), (5, 1e6)])
def test_a_text_layer_is_gemma_3s(attention: str, index: int, base: float) -> None:
    config = GEMMA3.model_copy(update={"attention": attention})
    reference = Gemma3TextConfig(**sizes(config), query_pre_attn_scalar=config.head_dim, sliding_window=4096)
    reference._attn_implementation = "eager"
    theirs, ours = Gemma3DecoderLayer(reference, index).eval(), InterleavedLayer(config, index).eval()
    randomize(theirs)
    copy(
        theirs,
        ours.backbone_layer,
        {
            "self_attn.": "",
            "input_layernorm": "pre_attention_norm",
            "post_attention_layernorm": "post_attention_norm",
            "pre_feedforward_layernorm": "pre_mlp_norm",
            "post_feedforward_layernorm": "post_mlp_norm",
        },
    )
    assert reference.rope_parameters[reference.layer_types[index]]["rope_theta"] == base == ours.rotary_base
    x, positions, mask = inputs(config)
    added = torch.where(mask, 0.0, torch.finfo(torch.float32).min)[:, None]
    wanted = theirs(x, doubled(rotary_table(positions, config.head_dim, base)), added)
    found, _, _ = ours(x, None, positions, mask)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_without_the_extra_norms_a_text_layer_is_the_first_gemmas() -> None:
    reference = GemmaConfig(**sizes(GEMMA), hidden_activation="gelu_pytorch_tanh")
    reference._attn_implementation = "eager"
    theirs, ours = GemmaDecoderLayer(reference, 0).eval(), InterleavedLayer(GEMMA, 5).eval()
    randomize(theirs, std=0.05)  # without a norm behind its branches the layer's output grows with their weights
    names = {
        "self_attn.": "",
        "input_layernorm": "pre_attention_norm",
        "post_attention_layernorm": "pre_mlp_norm",
    }
    copy(theirs, ours.backbone_layer, names)
    x, positions, mask = inputs(GEMMA)
    added = torch.where(mask, 0.0, torch.finfo(torch.float32).min)[:, None]
    table = doubled(rotary_table(positions, GEMMA.head_dim, 1e4))
    wanted = theirs(x, attention_mask=added, position_embeddings=table)
    found, _, _ = ours(x, None, positions, mask)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("space_time", [True, False])
def test_with_one_frame_a_vision_layer_is_siglips(attention: str, space_time: bool) -> None:
    config = Pi07Config(attention=attention)
    reference = SiglipVisionConfig(
        hidden_size=config.vision_hidden,
        intermediate_size=config.vision_mlp,
        num_attention_heads=config.vision_heads,
    )
    reference._attn_implementation = "eager"
    theirs, ours = SiglipEncoderLayer(reference).eval(), VisionLayer(config, space_time=space_time).eval()
    randomize(theirs)
    names = {
        "self_attn.": "",
        "out_proj": "o_proj",
        "layer_norm1": "attention_norm",
        "layer_norm2": "mlp_norm",
        "mlp.fc1": "up_proj",
        "mlp.fc2": "down_proj",
    }
    copy(theirs, ours, names)
    x = torch.randn(3, 64, config.vision_hidden)
    found = ours(x, torch.ones(3, 1, 1, dtype=torch.bool))
    torch.testing.assert_close(found, theirs(x, None), rtol=1e-5, atol=1e-5)
