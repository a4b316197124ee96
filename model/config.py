"""All sizes and switches of the policy, and its presets. Imports no torch."""

from collections.abc import Mapping
from math import isqrt
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

Size = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, lt=1)]
Length = Annotated[int, Field(ge=0)]
PresetName = Literal["tiny", "small", "pi05", "pi07"]
BranchSync = Literal["agree", "hoist", "none"]

RESERVED_IDS = 16
"""Token ids below this are reserved for padding and the fixed texts of the prefix (see `texts`)."""


class Pi07Config(BaseModel):
    """One policy and its training samples. Fields that are not given come from the preset, by default ``tiny``.

    Raises:
        pydantic.ValidationError: an unknown field, a value out of range, or incompatible sizes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)

    preset: PresetName = "tiny"
    """Values for the fields that are not given: ``tiny`` for a CPU, ``small`` (100 M), ``pi05`` (3.3 B), ``pi07``
    (5.6 B)."""

    num_cams: Annotated[int, Field(ge=1, le=8)] = 2
    """Cameras of the policy; each adds ``tokens_per_camera`` tokens to the prefix."""
    n_obs_history: Size = 2
    """Frames per camera, and state tokens, including the current one. Frames cost vision compute, not image tokens."""
    attention: Literal["eager", "sdpa", "flex"] = "sdpa"
    """``eager`` computes explicit scores, their softmax in fp32; ``sdpa`` is torch's fused kernel; ``flex`` is
    FlexAttention, which skips masked blocks: for GPUs, without dropout."""
    attention_dropout: Share = 0.0
    """Share of attention weights dropped in the interleaved layers during training."""
    grad_ckpt: bool = False
    """Recompute each unit's activations in the backward pass instead of keeping them."""
    knowledge_insulation: bool = True
    """Keep the flow loss from training the backbone: the expert reads detached keys and values."""
    freeze_backbone: bool = False
    """Do not train the text backbone (embedding, its half of every layer, its final norm)."""
    branch_sync: BranchSync = "hoist"
    """How ranks decide whether to compute a part that samples may lack. ``agree``: together, in one all-reduce.
    ``hoist``: always compute it and mask it, so the work does not depend on the samples. ``none``: each rank for
    itself, which hangs a sharded backend."""
    dataset_n_obs_history: Size | None = None
    """Frames in a sample of the dataset; null means as many as the policy uses. They must be equal."""
    dataset_num_cams: Size | None = None
    """Cameras of the dataset; null means as many as the policy has. Missing cameras are padded and masked."""

    n_layers: Size = 4
    """Interleaved layers: each one backbone layer and one expert layer."""
    n_heads: Size = 4
    """Query heads, the same in both streams."""
    n_kv_heads: Size = 2
    """Key/value heads, the same in both streams."""
    head_dim: Size = 32
    """Width of a head, the same in both streams."""
    backbone_hidden: Size = 128
    """Width of the text backbone."""
    backbone_mlp: Size = 384
    """Inner width of the backbone's MLP."""
    expert_hidden: Size = 64
    """Width of the action expert."""
    expert_mlp: Size = 256
    """Inner width of the expert's MLP."""
    qk_norm: bool = True
    """RMS norm on the backbone's queries and keys (Gemma 3)."""
    post_norms: bool = True
    """An additional norm after each branch of a backbone layer (Gemma 3)."""
    global_every: Length = 6
    """Every how many layers one uses the long rotary base; 0 for none."""
    vocab_size: Annotated[int, Field(ge=4 * RESERVED_IDS)] = 1024
    """Number of token ids. Synthetic prompts use the first ids, synthetic discrete actions the last."""

    image_size: Size = 64
    """Side of a square camera frame, in pixels."""
    patch_size: Size = 8
    """Side of a square patch, in pixels."""
    tokens_per_camera: Size = 16
    """Tokens that a camera adds to the prefix: a square number to which its patches are average-pooled."""
    vision_layers: Size = 4
    """Vision encoder layers; every fourth also attends over time."""
    vision_hidden: Size = 64
    """Width of the vision encoder."""
    vision_mlp: Size = 192
    """Inner width of the vision encoder's MLP."""
    vision_heads: Size = 2
    """Attention heads of the vision encoder."""

    prompt_len: Size = 32
    """Tokens of the prompt, including padding."""
    response_len: Length = 0
    """Tokens of the optional response; 0 omits it from every sample."""
    predict_response: bool = False
    """Also train on the response: its cross-entropy is added to that of the discrete actions."""
    metadata_len: Length = 0
    """Tokens of the optional metadata, all fields together; 0 omits it from every sample."""
    metadata_fields: Size = 4
    """Number of equal fields in the metadata."""
    subgoal: bool = False
    """Add an optional image per camera that shows the desired scene."""
    state_dim: Size = 14
    """Width of the robot's state."""
    action_dim: Size = 32
    """Width of an action."""
    action_horizon: Size = 10
    """Actions in a chunk."""
    action_token_len: Size = 32
    """Discrete action tokens at the end of the prefix, the target of the cross-entropy."""

    drop_history: Share = 0.3
    """Share of samples with only the current frame."""
    drop_subgoal: Share = 0.75
    """Share of samples without a subgoal."""
    drop_response: Share = 0.3
    """Share of samples without a response."""
    drop_metadata: Share = 0.15
    """Share of samples without any metadata."""
    drop_metadata_field: Share = 0.05
    """Share of samples with metadata in which a given field is missing."""
    dataset_size: Size = 2**20
    """Number of different samples; then they repeat."""

    @model_validator(mode="before")
    @classmethod
    def _fill_from_preset(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        name = values.get("preset", "tiny")
        return {**PRESETS.get(name, {}), **values} if isinstance(name, str) else values

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        for whole, part in (
            ("n_heads", "n_kv_heads"),
            ("vision_hidden", "vision_heads"),
            ("image_size", "patch_size"),
        ):
            if getattr(self, whole) % getattr(self, part):
                raise ValueError(f"{whole}={getattr(self, whole)} is not a multiple of {part}={getattr(self, part)}")
        for even in ("head_dim", "expert_hidden", "vision_hidden"):
            if getattr(self, even) % 2:
                raise ValueError(f"{even}={getattr(self, even)} is odd; it must be even, half sines and half cosines")
        if self.attention == "flex" and self.attention_dropout:
            raise ValueError("attention=flex has no dropout; set attention_dropout to 0")
        if self.predict_response and not self.response_len:
            raise ValueError("predict_response=True but response_len=0: there is no response to predict")
        if self.metadata_len % self.metadata_fields:
            raise ValueError(
                f"metadata_len={self.metadata_len} is not a multiple of metadata_fields={self.metadata_fields}"
            )
        side = isqrt(self.tokens_per_camera)
        if side**2 != self.tokens_per_camera or self.patches_per_side % side:
            raise ValueError(
                f"tokens_per_camera={self.tokens_per_camera} cannot be pooled from {self.patches_per_side} x "
                f"{self.patches_per_side} patches (image_size / patch_size): it must be the square of a divisor of "
                f"{self.patches_per_side}"
            )
        return self

    @model_validator(mode="after")
    def _check_dataset(self) -> Self:
        history, cams = self.dataset_n_obs_history, self.dataset_num_cams
        if history is not None and history != self.n_obs_history:
            raise ValueError(
                f"dataset_n_obs_history={history} but the policy has n_obs_history={self.n_obs_history}: "
                "they must be equal"
            )
        if cams is not None and cams > self.num_cams:
            raise ValueError(
                f"dataset_num_cams={cams} but the policy has num_cams={self.num_cams}: a dataset may have fewer "
                "cameras than the policy (they are padded), not more"
            )
        return self

    @property
    def patches_per_side(self) -> int:
        return self.image_size // self.patch_size


TINY: dict[str, JsonValue] = {}  # the defaults of the fields
SMALL: dict[str, JsonValue] = {
    "n_obs_history": 4,
    "n_layers": 12,
    "n_heads": 8,
    "n_kv_heads": 4,
    "head_dim": 64,
    "backbone_hidden": 512,
    "backbone_mlp": 2048,
    "expert_hidden": 256,
    "expert_mlp": 1024,
    "vocab_size": 32768,
    "image_size": 224,
    "patch_size": 14,
    "tokens_per_camera": 64,
    "vision_layers": 8,
    "vision_hidden": 384,
    "vision_mlp": 1536,
    "vision_heads": 6,
    "prompt_len": 64,
    "state_dim": 32,
}
# SigLIP So400m/14 (arXiv:2303.15343); each camera adds 256 of its tokens.
SO400M: dict[str, JsonValue] = {
    "patch_size": 14,
    "tokens_per_camera": 256,
    "vision_layers": 27,
    "vision_hidden": 1152,
    "vision_mlp": 4304,
    "vision_heads": 16,
}
# Gemma 2B as in PaliGemma (arXiv:2407.07726) and pi0.5 (arXiv:2504.16054), SigLIP at 224 px.
PI05_SHAPE: dict[str, JsonValue] = {
    "num_cams": 2,
    "n_obs_history": 1,
    "n_kv_heads": 1,
    "qk_norm": False,
    "post_norms": False,
    "global_every": 0,
}
PI05: dict[str, JsonValue] = {
    **PI05_SHAPE,
    "n_layers": 18,
    "n_heads": 8,
    "head_dim": 256,
    "backbone_hidden": 2048,
    "backbone_mlp": 16384,
    "expert_hidden": 1024,
    "expert_mlp": 4096,
    "vocab_size": 257152,
    "image_size": 224,
    **SO400M,
    "prompt_len": 256,
    "state_dim": 32,
}
# Gemma 3 4B (arXiv:2503.19786), a Gemma-shaped expert, SigLIP at 448 px.
PI07: dict[str, JsonValue] = {
    "num_cams": 4,
    "n_obs_history": 6,
    "n_layers": 34,
    "n_heads": 8,
    "n_kv_heads": 4,
    "head_dim": 256,
    "backbone_hidden": 2560,
    "backbone_mlp": 10240,
    "expert_hidden": 1280,
    "expert_mlp": 5120,
    "vocab_size": 262208,
    "image_size": 448,
    **SO400M,
    "prompt_len": 256,
    "response_len": 52,
    "metadata_len": 52,
    "subgoal": True,
    "attention_dropout": 0.1,
    "state_dim": 32,
    "action_horizon": 50,
}
PRESETS: Mapping[str, Mapping[str, JsonValue]] = {
    name: {"preset": name, **values}
    for name, values in (("tiny", TINY), ("small", SMALL), ("pi05", PI05), ("pi07", PI07))
}
"""Field values by preset, smallest first."""
