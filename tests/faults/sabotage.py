"""Toy whose backend silently runs in another regime than requested, in one way for each backend."""

import contextlib
import os
from typing import Literal

import torch
import torch.distributed as dist
from toy import Toy, ToyConfig

from bench.runner import attempt, setup, sharding

_set_up = attempt.set_up


def _changed(cell, device, batch_per_rank, **options):
    """Other settings than the launch requested, as a stray variable or an update of accelerate might cause."""
    if cell.options["sabotage"] == "settings":
        _change_settings()
    return _set_up(cell, device, batch_per_rank, **options)


def _change_settings():
    if (stage := os.environ.get("ACCELERATE_DEEPSPEED_ZERO_STAGE")) is not None:
        os.environ["ACCELERATE_DEEPSPEED_ZERO_STAGE"] = {"1": "2", "2": "1", "3": "2"}[stage]
    if os.environ.get("FSDP_VERSION") == "1":
        strategies = {"FULL_SHARD": "SHARD_GRAD_OP", "SHARD_GRAD_OP": "FULL_SHARD"}
        os.environ["FSDP_SHARDING_STRATEGY"] = strategies[os.environ["FSDP_SHARDING_STRATEGY"]]


def _without_masters(optimizer):
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    optimizer.clip_grad_norm_ = lambda max_norm: torch.nn.utils.clip_grad_norm_(weights, max_norm)
    return optimizer


def _reduce_in_fp32(_state, bucket):
    reduced = dist.all_reduce(bucket.buffer().float() / dist.get_world_size(), async_op=True).get_future()
    return reduced.then(lambda future: future.value()[0].to(bucket.buffer().dtype))


def _reduce_in_bf16(state, bucket):
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

    return bf16_compress_hook(state, bucket)


def _with_hook(hook):
    """DDP's gradients take another way than its wrapper says."""
    prepare = setup._prepare

    def hooked(*arguments):
        prepared = prepare(*arguments)
        prepared.model.register_comm_hook(None, hook)
        return prepared

    setup._prepare = hooked


def _fsdp2_policy(accelerator, **dtypes):
    from torch.distributed.fsdp import MixedPrecisionPolicy

    accelerator.state.fsdp_plugin.mixed_precision_policy = MixedPrecisionPolicy(**dtypes)


def _in_fp32(linear):
    """What a forward with autocast off, or casts of its own, may compute in."""
    x_float = torch.Tensor.float
    linear.forward = lambda x: torch.nn.functional.linear(x_float(x), x_float(linear.weight), x_float(linear.bias)).to(
        linear.weight.dtype
    )


def _in_autocast(model):
    forward = model.forward

    def autocast(batch):
        with torch.autocast("cpu", torch.bfloat16):
            return forward(batch)

    model.forward = autocast


def _configured(change):
    configure = setup._configure

    def changed(accelerator, *arguments):
        configure(accelerator, *arguments)
        change(accelerator.state)

    setup._configure = changed


def _fsdp_reduces_in_fp32(state):
    from torch.distributed.fsdp import MixedPrecision

    state.fsdp_plugin.mixed_precision_policy = MixedPrecision(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32, buffer_dtype=torch.bfloat16
    )


def _deepspeed_reduces_in_fp32(state):
    state.deepspeed_plugin.deepspeed_config["communication_data_type"] = "fp32"


def _keeps_weights(state):
    state.fsdp_plugin.reshard_after_forward = False


def _offloads(state):
    state.fsdp_plugin.cpu_offload = torch.distributed.fsdp.CPUOffloadPolicy(pin_memory=False)


def _overlaps(state):
    state.deepspeed_plugin.deepspeed_config["zero_optimization"]["overlap_comm"] = True


OPTIONS = {"reshard": _keeps_weights, "offload": _offloads, "overlap": _overlaps}


class SabotageConfig(ToyConfig):
    sabotage: Literal[
        "settings",
        "masters",
        "reduction",
        "fp32_units",
        "fp32_forward",
        "autocast",
        "fp32_hook",
        "bf16_hook",
        "fp32_comm",
        "reshard",
        "offload",
        "overlap",
        "mesh",
        "none",
    ]


class Sabotage(Toy):
    Config = SabotageConfig

    def build(self):
        match self.config.sabotage:
            case "masters":
                setup.MasterWeights = _without_masters
            case "reduction":
                setup._reduce_in_fp32 = lambda accelerator, *_: _fsdp2_policy(
                    accelerator, param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16
                )
            case "fp32_units":
                setup._reduce_in_fp32 = lambda accelerator, *_: _fsdp2_policy(accelerator, reduce_dtype=torch.float32)
            case "fp32_hook":
                _with_hook(_reduce_in_fp32)
            case "bf16_hook":
                _with_hook(_reduce_in_bf16)
            case "reshard" | "offload" | "overlap" as option:
                _configured(OPTIONS[option])
            case "mesh":
                sharding.meshed = lambda *_: contextlib.nullcontext()
            case "fp32_comm":
                _configured(
                    _deepspeed_reduces_in_fp32
                    if "ACCELERATE_DEEPSPEED_ZERO_STAGE" in os.environ
                    else _fsdp_reduces_in_fp32
                )
        model = super().build()
        if self.config.sabotage == "fp32_forward":
            for linear in (module for module in model.modules() if isinstance(module, torch.nn.Linear)):
                _in_fp32(linear)
        if self.config.sabotage == "autocast":
            _in_autocast(model)
        return model


attempt.set_up = _changed
