"""The policy: prefix pass, suffix pass, losses, sampling.

Shapes: B batch, C context tokens, S prefix tokens, L predicted tokens, K = C + T keys, T actions in the chunk, A action
width, D and E the streams' widths, G cameras, J key/value heads, H head width, V vocabulary.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bench.model import texts
from bench.model.attention import sinusoid
from bench.model.backbone import Linear, RMSNorm
from bench.model.branches import decide
from bench.model.config import Pi07Config
from bench.model.expert import AdaRMSNorm
from bench.model.interleaved import InterleavedLayer, KeyValue
from bench.model.normalizer import Normalizer
from bench.model.prefix import Block, Prefix, assemble, fixed_text, look_up, suffix_layout
from bench.model.statistics import ACTION_STD, STATE_STD, mean_and_std
from bench.model.vision import VisionTower

MIN_PERIOD, MAX_PERIOD = 4e-3, 4.0


class Pi07Policy(nn.Module):
    """A vision-language backbone for discrete actions, and an expert for continuous actions by flow matching.

    After pi0 (arXiv:2410.24164), with knowledge insulation (arXiv:2505.23705). Its only random numbers are those of
    ``attention_dropout``: `weights` draws its initial values.
    """

    def __init__(self, config: Pi07Config) -> None:
        super().__init__()
        self.config = config
        # The embedding is also the output head, so the root module owns it: one Parameter, registered once.
        self.embedding = nn.Parameter(torch.empty(config.vocab_size, config.backbone_hidden))
        self.normalize_state = Normalizer(*mean_and_std(STATE_STD))
        self.normalize_actions = Normalizer(*mean_and_std(ACTION_STD))
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
            ``mse`` and ``l1`` of the flow over normalized actions, ``ce`` (nats) and ``accuracy`` of the predicted
            tokens, ``loss`` = ``mse`` + ``ce``: fp32 scalars, averaged over the real values of a sample, then over
            samples.

        Raises:
            branches.BranchMismatch: the batches of different ranks have different fields.
        """
        prefix = self._embed_prefix(batch, training=True)
        hidden_BSD, caches = self._run_prefix(prefix)
        actions_BTA = self.normalize_actions(batch["actions"])
        noise_BTA, time_B11 = batch["noise"].float(), batch["time"].float()[:, None, None]
        noisy_BTA = time_B11 * noise_BTA + (1.0 - time_B11) * actions_BTA
        flow_BTA = self._flow(noisy_BTA, batch["time"], prefix, caches)

        # fp32 from here on. x = t·noise + (1 - t)·action, so the flow dx/dt is noise - action.
        error_BTA = flow_BTA.float() - (noise_BTA - actions_BTA)
        mse = _mean_of_samples(error_BTA.square().mean(-1), batch["action_is_real"])
        l1 = _mean_of_samples(error_BTA.abs().mean(-1), batch["action_is_real"])

        before_BLD, target_BL, is_real_BL = self._predicted(batch, prefix, hidden_BSD)
        hidden_BLD = self.backbone_norm(before_BLD)
        logits_BLV = F.linear(hidden_BLD.to(self.embedding.dtype), self.embedding).float()
        ce_BL = F.cross_entropy(logits_BLV.flatten(0, 1), target_BL.flatten(), reduction="none").view_as(target_BL)
        ce = _mean_of_samples(ce_BL, is_real_BL)
        accuracy = _mean_of_samples((logits_BLV.detach().argmax(-1) == target_BL).float(), is_real_BL)
        return {"loss": mse + ce, "mse": mse, "ce": ce, "l1": l1, "accuracy": accuracy}

    @torch.no_grad()
    def sample(self, batch: Mapping[str, Tensor], steps: int = 5) -> Tensor:
        """Actions (B, T, A) in the dataset's units, by Euler steps from ``batch["noise"]``. Not for a sharded policy:
        this call bypasses the hooks that gather its weights."""
        prefix = self._embed_prefix(batch, training=False)
        _, caches = self._run_prefix(prefix)
        x_BTA = batch["noise"].float()
        for index in range(steps):
            time_B = torch.full_like(x_BTA[:, 0, 0], 1.0 - index / steps)
            x_BTA = x_BTA - self._flow(x_BTA, time_B, prefix, caches).float() / steps
        return self.normalize_actions.undo(x_BTA)

    def _embed_prefix(self, batch: Mapping[str, Tensor], *, training: bool) -> Prefix:
        on = decide(self.config.branch_sync, batch)
        size, device, tokens = batch["prompt_ids"].shape[0], batch["prompt_ids"].device, self.config.tokens_per_camera
        absent_B1 = torch.zeros(size, 1, dtype=torch.bool, device=device)

        def has(part: str) -> Tensor:
            return batch[f"{part}_is_real"].any(1, keepdim=True) if on[part] else absent_B1

        def fixed(ids: range, is_real_B1: Tensor | None = None, name: str = "") -> Block:
            is_real_BS = None if is_real_B1 is None else is_real_B1.expand(-1, len(ids))
            return Block.text(fixed_text(ids, size, device), is_real_BS, name)

        def camera(x_BSD: Tensor, is_real_BG: Tensor) -> Block:
            return Block.joint(x_BSD, is_real_BG.repeat_interleave(tokens, 1))

        frames = slice(None) if on["history"] else slice(-1, None)
        frame_is_real_BF = batch["frame_is_real"][:, frames]
        images_BSD = self.vision(batch["images"][:, :, frames], frame_is_real_BF)
        state_BFD = self.state_proj(self.normalize_state(batch["state"][:, frames]))
        comma, end = (fixed_text(ids, size, device) for ids in (texts.STATE_COMMA, texts.STATE_END))
        blocks = [
            camera(images_BSD, batch["camera_is_real"]),
            Block.text(batch["prompt_ids"], batch["prompt_is_real"]),
            fixed(texts.STATE),
            Block.joint(state_BFD, frame_is_real_BF),
            Block.text(torch.where(has("response") | has("metadata"), comma, end)),
        ]
        for part in ("response", "metadata"):
            if on[part]:
                blocks.append(Block.text(batch[f"{part}_ids"], batch[f"{part}_is_real"], part))
        if on["subgoal"]:
            is_real_BG = batch["subgoal_is_real"]
            goal_BSD = self.vision(batch["subgoal_images"], torch.ones_like(is_real_BG[:, :1]))
            cameras = zip(torch.split(goal_BSD, tokens, 1), torch.split(is_real_BG, 1, 1), strict=True)
            blocks += [
                *(fixed(ids, has("subgoal")) for ids in (texts.OPTIONAL_END, texts.SUBGOAL)),
                *(camera(*each) for each in cameras),
                fixed(texts.SUBGOAL_END, has("subgoal")),
            ]
        if training:
            # The expert must not see the answer: its context ends before the heading.
            blocks.append(fixed(texts.ACTION, name="heading"))
            blocks.append(Block.text(batch["action_ids"], batch["action_id_is_real"], "action"))
        scale = self.config.backbone_hidden**0.5
        return assemble(look_up(blocks, lambda ids: F.embedding(ids, self.embedding) * scale))

    def _predicted(
        self, batch: Mapping[str, Tensor], prefix: Prefix, hidden_BSD: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The hidden state before each token to predict, the token, and whether it is real."""
        parts = ["action", *(["response"] if self.config.predict_response and "response" in prefix.spans else [])]
        spans = [prefix.spans[part] for part in parts]
        before_BLD = torch.cat([hidden_BSD[:, span.start - 1 : span.stop - 1] for span in spans], 1)
        targets_BL = torch.cat([batch[f"{part}_ids"] for part in parts], 1)
        return before_BLD, targets_BL, torch.cat([prefix.is_real_BS[:, span] for span in spans], 1)

    def _run_prefix(self, prefix: Prefix) -> tuple[Tensor, list[KeyValue]]:
        hidden_BSD, caches = prefix.x_BSD, []
        for layer in self.interleaved_layers:
            hidden_BSD, _, cache = self._call(layer, hidden_BSD, None, prefix.positions_BS, prefix.mask_BSS)
            caches.append(cache)
        return hidden_BSD, caches

    def _flow(self, noisy_BTA: Tensor, time_B: Tensor, prefix: Prefix, caches: list[KeyValue]) -> Tensor:
        time_BE = sinusoid(time_B, self.config.expert_hidden, MIN_PERIOD, MAX_PERIOD)
        condition_BE = F.silu(self.time_out(F.silu(self.time_in(time_BE))))
        n_context = prefix.spans["heading"].start if "heading" in prefix.spans else prefix.x_BSD.shape[1]
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
        # Checkpoint around the unit, not inside it: recomputation then runs its hooks and returns the cache too.
        if self.config.grad_ckpt and self.training:
            dropout = self.config.attention_dropout > 0
            return checkpoint(layer, *inputs, use_reentrant=False, preserve_rng_state=dropout)
        return layer(*inputs)


def _mean_of_samples(value_BX: Tensor, is_real_BX: Tensor) -> Tensor:
    """Mean over the real values of a sample, then over samples: an even split of the batch gives the same mean."""
    value_B = (value_BX * is_real_BX).sum(1) / is_real_BX.sum(1)
    return value_B.mean()
