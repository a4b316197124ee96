"""The vision tower: a SigLIP encoder (arXiv:2303.15343) whose every fourth layer also attends over time.

Shapes: G cameras of the whole batch, F frames (the current one last), I = G·F images, P patches, C values in a patch,
D width, N heads, H head width, X = N·P.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bench.model.attention import attend, merge_heads, sinusoid, split_heads
from bench.model.backbone import EPS, Linear, RMSNorm
from bench.model.config import Pi07Config
from bench.model.counts import SPACE_TIME_EVERY

MIN_PERIOD, MAX_PERIOD = 4e-3, 40.0


class PatchEmbedding(nn.Module):
    """uint8 frames to patch tokens with learned positions."""

    def __init__(self, config: Pi07Config) -> None:
        super().__init__()
        self.patch_size, self.patches_per_side = config.patch_size, config.patches_per_side
        self.proj = Linear(3 * config.patch_size**2, config.vision_hidden)
        self.position = nn.Parameter(torch.empty(config.patches_per_side**2, config.vision_hidden))

    def forward(self, image_I3HW: Tensor) -> Tensor:
        images, side, size = image_I3HW.shape[0], self.patches_per_side, self.patch_size
        # Split into patches while still bytes. The order in a patch is that of a convolution: channel, row, column.
        patch = image_I3HW.view(images, 3, side, size, side, size).permute(0, 2, 4, 1, 3, 5)
        patch_IPC = patch.reshape(images, side * side, -1).float() / 127.5 - 1.0
        out_IPD: Tensor = self.proj(patch_IPC) + self.position
        return out_IPD


class VisionLayer(nn.Module):
    """A pre-norm encoder layer. With ``space_time`` it first mixes the values over time, patch by patch.

    Both attentions share one set of projections, so it has the same parameters as a plain layer.
    """

    def __init__(self, config: Pi07Config, space_time: bool) -> None:
        super().__init__()
        width = config.vision_hidden
        self.attention = config.attention
        self.head_dim = width // config.vision_heads
        self.space_time = space_time
        self.attention_norm = nn.LayerNorm(width, eps=EPS)
        self.q_proj = Linear(width, width)
        self.k_proj = Linear(width, width)
        self.v_proj = Linear(width, width)
        self.o_proj = Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width, eps=EPS)
        self.up_proj = Linear(width, config.vision_mlp)
        self.down_proj = Linear(config.vision_mlp, width)

    def forward(self, x_IPD: Tensor, mask_GFF: Tensor) -> Tensor:
        """``mask_GFF`` is true where a frame sees another; its size gives the number of frames."""
        x_IPD = x_IPD.to(self.attention_norm.weight.dtype)
        n_frames = mask_GFF.shape[-1]
        over_time = (
            self.space_time and n_frames > 1
        )  # a single frame would see only itself, and its values would not change
        y_IPD = x_IPD + frame_embedding(n_frames, x_IPD).repeat(mask_GFF.shape[0], 1, 1) if over_time else x_IPD
        y_IPD = self.attention_norm(y_IPD)
        q_INPH, k_INPH, v_INPH = (
            split_heads(projection(y_IPD), self.head_dim) for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        if over_time:
            v_INPH = self._over_time(q_INPH, k_INPH, v_INPH, mask_GFF)
        x_IPD = x_IPD + self.o_proj(merge_heads(attend(self.attention, q_INPH, k_INPH, v_INPH)))
        out_IPD: Tensor = x_IPD + self.down_proj(F.gelu(self.up_proj(self.mlp_norm(x_IPD)), approximate="tanh"))
        return out_IPD

    def _over_time(self, q_INPH: Tensor, k_INPH: Tensor, v_INPH: Tensor, mask_GFF: Tensor) -> Tensor:
        """Values mixed over the frames of each patch. Patches act as additional heads, so they share one mask."""
        groups, n_frames, _ = mask_GFF.shape
        shape_GFNPH = (groups, n_frames, *q_INPH.shape[1:])
        q_GXFH, k_GXFH, v_GXFH = (
            part.reshape(shape_GFNPH).permute(0, 2, 3, 1, 4).flatten(1, 2) for part in (q_INPH, k_INPH, v_INPH)
        )
        mixed_GXFH = attend(self.attention, q_GXFH, k_GXFH, v_GXFH, mask_GFF)
        _, _, n_heads, n_patches, head_dim = shape_GFNPH
        return mixed_GXFH.view(groups, n_heads, n_patches, n_frames, head_dim).permute(0, 3, 1, 2, 4).flatten(0, 1)


def frame_embedding(n_frames: int, like: Tensor) -> Tensor:
    """(F, 1, D): the sinusoid of a frame's age minus that of age zero, so it is exactly zero for the current frame."""
    age_F = torch.arange(1 - n_frames, 1, device=like.device, dtype=torch.float32)
    table_FD = sinusoid(age_F, like.shape[-1], MIN_PERIOD, MAX_PERIOD)
    return (table_FD - table_FD[-1])[:, None].to(like.dtype)


class VisionTower(nn.Module):
    """Frames of every camera to tokens of the backbone's width. Not a sharding unit itself; its layers are."""

    def __init__(self, config: Pi07Config) -> None:
        super().__init__()
        self.grad_ckpt = config.grad_ckpt
        self.patch_embedding = PatchEmbedding(config)
        self.layers = nn.ModuleList(
            VisionLayer(config, space_time=(index + 1) % SPACE_TIME_EVERY == 0) for index in range(config.vision_layers)
        )
        self.norm = nn.LayerNorm(config.vision_hidden, eps=EPS)
        self.patches_per_side = config.patches_per_side
        self.pool = round((config.patches_per_side**2 / config.tokens_per_camera) ** 0.5)
        self.projector_norm = RMSNorm(config.vision_hidden)
        self.projector = Linear(config.vision_hidden, config.backbone_hidden, bias=False)

    def forward(self, image_BCF3HW: Tensor, frame_is_real_BF: Tensor) -> Tensor:
        """(B, C·tokens, backbone width), for the current frames only."""
        batch, cams, n_frames = image_BCF3HW.shape[:3]
        causal_FF = torch.ones(n_frames, n_frames, dtype=torch.bool, device=image_BCF3HW.device).tril()
        # A padded frame still sees itself, because softmax needs at least one key.
        self_FF = torch.eye(n_frames, dtype=torch.bool, device=image_BCF3HW.device)
        mask_GFF = (causal_FF & frame_is_real_BF[:, None] | self_FF).repeat_interleave(cams, 0)

        x_IPD = self.patch_embedding(image_BCF3HW.flatten(0, 2))
        for layer in self.layers:
            if self.grad_ckpt and self.training:
                x_IPD = checkpoint(layer, x_IPD, mask_GFF, use_reentrant=False, preserve_rng_state=False)
            else:
                x_IPD = layer(x_IPD, mask_GFF)
        current_GPD = self.norm(x_IPD[n_frames - 1 :: n_frames].to(self.norm.weight.dtype))
        grid_GDHW = current_GPD.mT.reshape(batch * cams, -1, self.patches_per_side, self.patches_per_side)
        pooled_GSD = F.avg_pool2d(grid_GDHW, self.pool).flatten(2).mT
        tokens_GSD: Tensor = self.projector(self.projector_norm(pooled_GSD))
        return tokens_GSD.view(batch, -1, tokens_GSD.shape[-1])
