"""Synthetic episodes: cheap, the same on every machine, and learnable.

Shapes: G cameras, F frames, L discrete action tokens, T actions in the chunk, A action width, X state width.
"""

import torch
from torch import Tensor
from torch.utils.data import Dataset

from bench.model.config import RESERVED_IDS, Pi07Config
from bench.model.statistics import SOURCES, STATE_STD, Source

LENGTH = 2**20
N_TASKS = 8
BINS = 32  # few, so that the cross-entropy falls within a short run


class Samples(Dataset[dict[str, Tensor]]):
    """Sample ``i`` depends only on the config, ``seed`` and ``i``.

    The current state and the task, which the prompt names, determine the actions. The discrete actions are the first
    of them, in bins. A sample also contains the noise and the time of flow matching, and lacks the same parts each
    time, so the loss depends on nothing else.

    Floating-point values are exact in bf16, so a backend that casts its inputs computes the same loss as one that does
    not.
    """

    def __init__(self, config: Pi07Config, seed: int) -> None:
        self.config = config
        self.seed = seed

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """One sample; its keys are the inputs of `Pi07Policy.forward`, without the batch dimension.

        Raises:
            IndexError: ``index`` is not below the length.
        """
        if not 0 <= index < LENGTH:
            raise IndexError(index)
        c = self.config
        random = torch.Generator().manual_seed((self.seed * LENGTH + index % c.dataset_size) % 2**63)
        task, prompt_len, n_action_ids, n_actions = (
            int(torch.randint(low, high + 1, (), generator=random))
            for low, high in (
                (0, N_TASKS - 1),
                ((c.prompt_len + 1) // 2, c.prompt_len),
                ((c.action_token_len + 1) // 2, c.action_token_len),
                ((c.action_horizon + 1) // 2, c.action_horizon),
            )
        )
        drop, uniform, choice = torch.rand(3, generator=random).tolist()
        source = _choose(choice)
        state_FX = STATE_STD * torch.randn(c.n_obs_history, c.state_dim, generator=random)
        phase_A = state_FX[-1, torch.arange(c.action_dim) % c.state_dim] + task
        actions_TA = torch.sin(phase_A + 0.1 * torch.arange(c.action_horizon)[:, None])
        frame = torch.arange(c.n_obs_history)
        return {
            "images": self._frames(random, source, c.n_obs_history),
            "camera_is_real": torch.arange(c.num_cams) < source.cams(c),
            "frame_is_real": frame >= (c.n_obs_history - 1 if drop < c.drop_history else 0),
            "state": _exact(source.shift + source.scale * state_FX),
            "prompt_ids": self._words(c.prompt_len, 4 * task),
            "prompt_is_real": torch.arange(c.prompt_len) < prompt_len,
            "action_ids": self._tokens(actions_TA),
            "action_id_is_real": torch.arange(c.action_token_len) < n_action_ids,
            "actions": _exact(source.shift + source.scale * actions_TA),
            "action_is_real": torch.arange(c.action_horizon) < n_actions,
            "noise": _exact(torch.randn(c.action_horizon, c.action_dim, generator=random)),
            # Beta(1.5, 1) by inverting its distribution function, u = t**1.5 (pi0, arXiv:2410.24164, appendix B).
            "time": _exact(torch.tensor(0.999 * uniform ** (1 / 1.5) + 0.001)),
            **self._optional(random, source, task),
        }

    def _optional(self, random: torch.Generator, source: Source, task: int) -> dict[str, Tensor]:
        """The optional parts. A part that the config omits has no field."""
        c = self.config
        response, metadata, subgoal, *fields = torch.rand(3 + c.metadata_fields, generator=random).tolist()
        parts: dict[str, Tensor] = {}
        if c.response_len:
            parts["response_ids"] = self._words(c.response_len, 4 * task + 1)
            parts["response_is_real"] = torch.full((c.response_len,), response >= c.drop_response)
        if c.metadata_len:
            has = torch.tensor([metadata >= c.drop_metadata and field >= c.drop_metadata_field for field in fields])
            parts["metadata_ids"] = self._words(c.metadata_len, 4 * task + 2)
            parts["metadata_is_real"] = has.repeat_interleave(c.metadata_len // c.metadata_fields)
        if c.subgoal:
            has = torch.full((c.num_cams,), subgoal >= c.drop_subgoal)
            parts["subgoal_images"] = self._frames(random, source, 1)
            parts["subgoal_is_real"] = has & (torch.arange(c.num_cams) < source.cams(c))
        return parts

    def _frames(self, random: torch.Generator, source: Source, frames: int) -> Tensor:
        """(G, F, 3, side, side) bytes: one random patch per frame, tiled; black for cameras that the source lacks."""
        c = self.config
        cams = source.cams(c)
        patch = torch.randint(
            0, 256, (cams, frames, 3, c.patch_size, c.patch_size), dtype=torch.uint8, generator=random
        )
        image = patch.repeat(1, 1, 1, c.patches_per_side, c.patches_per_side)
        return torch.cat((image, image.new_zeros(c.num_cams - cams, *image.shape[1:]))) if cams < c.num_cams else image

    def _words(self, length: int, start: int) -> Tensor:
        """A text of ``length`` ids; ``start`` makes it different from other texts."""
        return RESERVED_IDS + (torch.arange(length) + start) % (self.config.vocab_size // 4)

    def _tokens(self, actions_TA: Tensor) -> Tensor:
        """The first action values in `BINS` bins, as the vocabulary's last ids."""
        c = self.config
        action_L = actions_TA.flatten()[torch.arange(c.action_token_len) % actions_TA.numel()]
        return c.vocab_size - BINS + ((action_L + 1) / 2 * (BINS - 1)).long()


def _choose(choice: float) -> Source:
    """The source whose share of [0, 1) contains ``choice``."""
    for source in SOURCES:
        if choice < source.weight:
            return source
        choice -= source.weight
    return SOURCES[-1]


def _exact(x: Tensor) -> Tensor:
    return x.bfloat16().float()
