"""Toy with gradient checkpointing in both of torch's ways, and frozen weights."""

from typing import Literal

from torch.utils.checkpoint import checkpoint
from toy import Toy, ToyConfig


class CheckpointedConfig(ToyConfig):
    recompute: Literal["no", "reentrant", "not reentrant"] = "no"
    frozen: bool = False


class Checkpointed(Toy):
    Config = CheckpointedConfig

    def build(self):
        model = super().build()
        model.register_forward_hook(_weigh)
        blocks, config = model.blocks, self.config
        if config.frozen:
            for block in blocks:
                block.inner.weight.requires_grad_(False)
        if config.recompute != "no":
            for block in blocks:
                _recompute(block, reentrant=config.recompute == "reentrant")
        return model


def _weigh(model, _inputs, output):
    """The metric l1 shows whether a step moved the weights. ZeRO-3 has none of them here."""
    return {**output, "l1": model.head.weight.detach().float().sum()}


def _recompute(block, *, reentrant):
    """As transformers does it: around the call of the layer."""
    kind = type(block)

    def call(self, x):
        x = x if x.requires_grad else x.requires_grad_()
        return checkpoint(super(kind, self).__call__, x, use_reentrant=reentrant)

    block.__class__ = type(kind.__name__, (kind,), {"__call__": call})
