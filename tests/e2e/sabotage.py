"""Toy whose backend silently runs in another regime than requested, in one way for each backend."""

import os
from typing import Literal

import torch
from toy import Toy, ToyConfig

from bench.runner import device, setup

_open = device.Cpu.open


def _changed(self, family, *, find_unused_parameters):
    """Other settings than the launch requested, as a stray variable or an update of accelerate might cause."""
    if (stage := os.environ.get("ACCELERATE_DEEPSPEED_ZERO_STAGE")) is not None:
        os.environ["ACCELERATE_DEEPSPEED_ZERO_STAGE"] = {"1": "2", "2": "1", "3": "2"}[stage]
    if os.environ.get("FSDP_VERSION") == "1":
        strategies = {"FULL_SHARD": "SHARD_GRAD_OP", "SHARD_GRAD_OP": "FULL_SHARD"}
        os.environ["FSDP_SHARDING_STRATEGY"] = strategies[os.environ["FSDP_SHARDING_STRATEGY"]]
    return _open(self, family, find_unused_parameters=find_unused_parameters)


def _without_masters(optimizer):
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    optimizer.clip_grad_norm_ = lambda max_norm: torch.nn.utils.clip_grad_norm_(weights, max_norm)
    return optimizer


class SabotageConfig(ToyConfig):
    sabotage: Literal["settings", "masters", "reduction"]


class Sabotage(Toy):
    Config = SabotageConfig

    def build(self):
        match self.config.sabotage:
            case "masters":
                setup.MasterWeights = _without_masters
            case "reduction":
                from torch.distributed.fsdp import MixedPrecisionPolicy

                policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
                setup._reduce_in_fp32 = lambda accelerator: setattr(
                    accelerator.state.fsdp_plugin, "mixed_precision_policy", policy
                )
        return super().build()


device.Cpu.open = _changed
