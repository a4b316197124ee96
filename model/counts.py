"""Parameters and floating-point operations of the policy, computed from its sizes. Imports no torch."""

from typing import NamedTuple

from bench.model import texts
from bench.model.config import Pi07Config, PresetName

SPACE_TIME_EVERY = 4
"""Every fourth vision layer also attends over time."""


def parameter_count_by_part(config: Pi07Config) -> dict[str, int]:
    """Parameters of each part.

    ``backbone_layer`` and ``expert_layer`` count one layer; they are included in ``backbone`` and ``expert``.
    """
    c = config
    attention_width = 2 * c.n_heads * c.head_dim + 2 * c.n_kv_heads * c.head_dim  # q and o, k and v
    backbone_layer = c.backbone_hidden * (attention_width + 3 * c.backbone_mlp + (4 if c.post_norms else 2))
    backbone_layer += 2 * c.head_dim * c.qk_norm
    ada_rms = 3 * c.expert_hidden * (c.expert_hidden + 1)
    expert_layer = c.expert_hidden * (attention_width + 3 * c.expert_mlp) + 2 * ada_rms
    vision_layer = c.vision_hidden * (4 * c.vision_hidden + 2 * c.vision_mlp + 9) + c.vision_mlp
    patches = c.vision_hidden * (3 * c.patch_size**2 + 1 + c.patches_per_side**2)
    return {
        "backbone_layer": backbone_layer,
        "expert_layer": expert_layer,
        "backbone": c.n_layers * backbone_layer + c.backbone_hidden * (c.vocab_size + 1),
        "expert": c.n_layers * expert_layer
        + ada_rms
        + 2 * c.expert_hidden * (c.expert_hidden + 1)  # the time MLP
        + (c.action_dim + 1) * c.expert_hidden
        + (c.expert_hidden + 1) * c.action_dim,
        "vision": c.vision_layers * vision_layer + patches + 2 * c.vision_hidden,
        "projector": c.vision_hidden * (c.backbone_hidden + 1),
        "state": (c.state_dim + 1) * c.backbone_hidden,
    }


def parameter_count(config: Pi07Config) -> int:
    """All parameters of the policy."""
    parts = parameter_count_by_part(config)
    return sum(parts[part] for part in ("backbone", "expert", "vision", "projector", "state"))


class Flops(NamedTuple):
    """Floating-point operations of one sample; a multiply-add counts as two."""

    forward: int
    step: int
    """Forward, backward, and the recomputation of gradient checkpointing."""
    recomputed: int
    """The part of ``step`` that gradient checkpointing recomputes."""


def flops_per_sample(config: Pi07Config) -> Flops:
    """Operations of all matrix products, with every optional part present, without norms, activations and optimizer.

    A product of (m, k) and (k, n) takes 2·m·k·n. So a linear map takes 2·(its weight's size) per token, and attention
    of q queries over k keys takes 2·q·k·width for the scores and as much for the values. Backward computes two products
    for each, one gradient per factor (PaLM, arXiv:2204.02311, appendix B): no gradient for an input that is data,
    none for a frozen weight. Checkpointing repeats the forward of each unit up to the last tensor that backward needs,
    so not the last product before a residual sum.
    """
    c = config
    width = c.n_heads * c.head_dim
    projections = 2 * width + 2 * c.n_kv_heads * c.head_dim
    prefix, suffix = prefix_length(c), c.action_horizon
    context = prefix - len(texts.ACTION) - c.action_token_len

    backbone_linear = c.n_layers * 2 * prefix * c.backbone_hidden * (projections + 3 * c.backbone_mlp)
    expert_linear = c.n_layers * 2 * suffix * c.expert_hidden * (projections + 3 * c.expert_mlp)
    modulation = 2 * 3 * c.expert_hidden**2
    attention = c.n_layers * 4 * width * (prefix**2 + suffix * (context + suffix))
    layers = backbone_linear + expert_linear + c.n_layers * 2 * modulation + attention

    patches = c.patches_per_side**2
    images = c.num_cams * (c.n_obs_history + c.subgoal)
    vision_layer = patches * c.vision_hidden * (8 * c.vision_hidden + 4 * c.vision_mlp + 4 * patches)
    over_time = 4 * c.num_cams * c.n_obs_history**2 * patches * c.vision_hidden * (c.n_obs_history > 1)
    vision_layers = c.vision_layers * images * vision_layer + c.vision_layers // SPACE_TIME_EVERY * over_time
    projector = 2 * c.num_cams * (1 + c.subgoal) * c.tokens_per_camera * c.vision_hidden * c.backbone_hidden

    predicted = c.action_token_len + c.response_len * c.predict_response
    head = 2 * predicted * c.backbone_hidden * c.vocab_size
    ends = modulation + 2 * c.expert_hidden**2 + 2 * suffix * c.action_dim * c.expert_hidden
    of_data = 2 * (
        images * patches * 3 * c.patch_size**2 * c.vision_hidden
        + c.n_obs_history * c.state_dim * c.backbone_hidden
        + suffix * c.action_dim * c.expert_hidden
        + c.expert_hidden**2
    )
    frozen = (backbone_linear + head) * c.freeze_backbone
    added = 2 * c.vision_layers * images * patches * c.vision_hidden * c.vision_mlp
    added += c.n_layers * 2 * prefix * c.backbone_hidden * c.backbone_mlp * (not c.post_norms)
    again = (layers + vision_layers - added) * c.grad_ckpt
    forward = layers + vision_layers + projector + head + ends + of_data
    return Flops(forward, 3 * forward - of_data - frozen + again, again)


def tokens_per_sample(config: Pi07Config) -> int:
    """Length of a sample's sequence: the prefix with every optional part present, and the actions of the suffix."""
    return prefix_length(config) + config.action_horizon


def prefix_length(config: Pi07Config) -> int:
    """Tokens of the prefix with every optional part present."""
    c = config
    cameras = c.num_cams * c.tokens_per_camera
    fixed = len(texts.STATE) + len(texts.STATE_END) + len(texts.ACTION)
    subgoal = len(texts.OPTIONAL_END) + len(texts.SUBGOAL) + cameras + len(texts.SUBGOAL_END)
    tokens = c.prompt_len + c.n_obs_history + c.response_len + c.metadata_len + c.action_token_len
    return cameras + fixed + tokens + subgoal * c.subgoal


def auto_preset(device: str, memory_bytes_per_rank: int, *larger: PresetName) -> PresetName:
    """The first of ``larger`` that fits on ``device``; ``tiny`` if there is none, and on a CPU.

    A parameter counts as 18 bytes (bf16 weight, fp32 gradient, master and two Adam moments). Parameters may fill 75 %
    of the memory, so that a quarter remains for activations and the allocator.
    """
    if device != "cuda":
        return "tiny"
    for name in larger:
        if 18 * parameter_count(Pi07Config(preset=name)) <= 0.75 * memory_bytes_per_rank:
            return name
    return "tiny"
