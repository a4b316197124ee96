"""The policy: prefix pass, suffix pass, losses.

Shapes: B batch, C context tokens, S prefix tokens, L discrete action tokens, K = C + T keys, T actions in the chunk,
A action width, D and E the streams' widths, J key/value heads, H head width, V vocabulary.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from model.attention import sinusoid
from model.backbone import INIT_STD, Linear, RMSNorm
from model.config import Pi07Config
from model.expert import AdaRMSNorm
from model.interleaved import InterleavedLayer, KeyValue
from model.prefix import ACTION_TEXT, STATE_END, STATE_TEXT, Block, Prefix, assemble, fixed_text, suffix_layout
from model.vision import VisionTower

MIN_PERIOD, MAX_PERIOD = 4e-3, 4.0


class Pi07Policy(nn.Module):
    """A vision-language backbone that predicts discrete actions and an expert that flows to continuous ones.

    After pi0 (arXiv:2410.24164) with knowledge insulation (arXiv:2505.23705). It draws no random numbers.
    """

    def __init__(self, config: Pi07Config) -> None:
        super().__init__()
        self.config = config
        # The root owns the embedding, because it is also the output head: one Parameter, registered once.
        self.embedding = nn.Parameter(torch.empty(config.vocab_size, config.backbone_hidden))
        nn.init.normal_(self.embedding, std=INIT_STD)
        self.vision = VisionTower(config)
        self.state_proj = Linear(config.state_dim, config.backbone_hidden)
        self.interleaved_layers = nn.ModuleList(InterleavedLayer(config, index) for index in range(config.n_layers))
        self.backbone_norm = RMSNorm(config.backbone_hidden)
        self.action_in = Linear(config.action_dim, config.expert_hidden)
        self.time_in = Linear(config.expert_hidden, config.expert_hidden)
        self.time_out = Linear(config.expert_hidden, config.expert_hidden)
        self.expert_norm = AdaRMSNorm(config.expert_hidden)
        self.action_out = Linear(config.expert_hidden, config.action_dim)
        if config.freeze_backbone:
            self.embedding.requires_grad_(False)
            self.backbone_norm.requires_grad_(False)

    def forward(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The losses of a collated batch of `data.Samples`.

        Returns:
            ``mse`` and ``l1`` of the flow, ``ce`` (nats) and ``accuracy`` of the discrete actions, ``loss`` = ``mse``
            + ``ce``: fp32 scalars, averaged within a sample over what is real, then over samples.
        """
        prefix = self._embed_prefix(batch)
        hidden_BSD, caches = self._run_prefix(prefix)
        flow_BTA = self._run_suffix(batch, prefix, caches)

        # In fp32 from here. x = t·noise + (1 - t)·action, so the flow dx/dt is noise - action.
        error_BTA = flow_BTA.float() - (batch["noise"].float() - batch["actions"].float())
        mse = _mean_of_samples(error_BTA.square().mean(-1), batch["action_is_real"])
        l1 = _mean_of_samples(error_BTA.abs().mean(-1), batch["action_is_real"])

        # The token before an action token predicts it.
        target_BL, is_real_BL = batch["action_ids"], batch["action_id_is_real"]
        before_BLD = self.backbone_norm(hidden_BSD[:, -target_BL.shape[1] - 1 : -1])
        logits_BLV = F.linear(before_BLD.to(self.embedding.dtype), self.embedding).float()
        ce_BL = F.cross_entropy(logits_BLV.flatten(0, 1), target_BL.flatten(), reduction="none").view_as(target_BL)
        ce = _mean_of_samples(ce_BL, is_real_BL)
        accuracy = _mean_of_samples((logits_BLV.detach().argmax(-1) == target_BL).float(), is_real_BL)
        return {"loss": mse + ce, "mse": mse, "ce": ce, "l1": l1, "accuracy": accuracy}

    def _embed_prefix(self, batch: Mapping[str, Tensor]) -> Prefix:
        size, device = batch["prompt_ids"].shape[0], batch["prompt_ids"].device
        fixed = [fixed_text(ids, size, device) for ids in (STATE_TEXT, STATE_END, ACTION_TEXT)]
        texts = [batch["prompt_ids"], *fixed, batch["action_ids"]]
        # One lookup for all texts, whatever is present.
        embedded_BSD = F.embedding(torch.cat(texts, 1), self.embedding) * self.config.backbone_hidden**0.5
        prompt, state_text, state_end, action_text, actions = embedded_BSD.split([text.shape[1] for text in texts], 1)
        images = self.vision(batch["images"], batch["frame_is_real"])
        return assemble(
            [
                Block.joint(images, batch["camera_is_real"].repeat_interleave(self.config.tokens_per_camera, 1)),
                Block.text(prompt, batch["prompt_is_real"]),
                Block.text(state_text),
                Block.joint(self.state_proj(batch["state"]), batch["frame_is_real"]),
                Block.text(state_end),
                Block.text(action_text),
                Block.text(actions, batch["action_id_is_real"]),
            ]
        )

    def _run_prefix(self, prefix: Prefix) -> tuple[Tensor, list[KeyValue]]:
        hidden_BSD, caches = prefix.x_BSD, []
        for layer in self.interleaved_layers:
            hidden_BSD, _, cache = self._call(layer, hidden_BSD, None, prefix.positions_BS, prefix.mask_BSS)
            caches.append(cache)
        return hidden_BSD, caches

    def _run_suffix(self, batch: Mapping[str, Tensor], prefix: Prefix, caches: list[KeyValue]) -> Tensor:
        time_B11 = batch["time"].float()[:, None, None]
        noisy_BTA = time_B11 * batch["noise"].float() + (1.0 - time_B11) * batch["actions"].float()
        time_BE = sinusoid(batch["time"], self.config.expert_hidden, MIN_PERIOD, MAX_PERIOD)
        condition_BE = F.silu(self.time_out(F.silu(self.time_in(time_BE))))

        # The expert must not read the answer: the discrete actions and their heading stay out of its context.
        n_context = prefix.x_BSD.shape[1] - len(ACTION_TEXT) - batch["action_ids"].shape[1]
        positions_BT, mask_BTK = suffix_layout(prefix.is_real_BS[:, :n_context], noisy_BTA.shape[1])
        x_BTE = self.action_in(noisy_BTA)
        for layer, (k_BJSH, v_BJSH) in zip(self.interleaved_layers, caches, strict=True):
            context = (k_BJSH[:, :, :n_context], v_BJSH[:, :, :n_context])
            if self.config.knowledge_insulation:
                context = (context[0].detach(), context[1].detach())
            _, x_BTE, _ = self._call(layer, None, x_BTE, positions_BT, mask_BTK, condition_BE, context)
        out_BTA: Tensor = self.action_out(self.expert_norm(x_BTE, condition_BE)[0])
        return out_BTA

    def _call(self, layer: nn.Module, *inputs: Any) -> Any:
        # Around the unit, not inside it: recomputing passes its hooks again, and the cache is among its outputs.
        if self.config.grad_ckpt and self.training:
            return checkpoint(layer, *inputs, use_reentrant=False, preserve_rng_state=False)
        return layer(*inputs)


def _mean_of_samples(value_BX: Tensor, is_real_BX: Tensor) -> Tensor:
    """Averaged within each sample over what is real, then over samples: splitting a batch evenly changes nothing."""
    value_B = (value_BX * is_real_BX).sum(1) / is_real_BX.sum(1)
    return value_B.mean()
