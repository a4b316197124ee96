"""What torch, accelerate and DeepSpeed import only once they are used.

A rank server imports it for all its children. An attempt imports its own part before its memory limit is set, so that
the limit counts what training takes and nothing else.
"""

import contextlib
import importlib
from collections.abc import Iterable
from typing import get_args

from bench.backends import Family

_ALWAYS = ("torch._dynamo", "torch.distributed.algorithms.ddp_comm_hooks", "transformers.integrations.deepspeed")
_ENGINE = ("deepspeed", "torch._inductor.compile_fx", "torch.utils.cpp_extension", "deepspeed.runtime.superoffload")
# accelerate imports deepspeed to clip FSDP2's gradients.
_MODULES: dict[Family, tuple[str, ...]] = {"fsdp2": (*_ALWAYS, "deepspeed"), "deepspeed": (*_ALWAYS, *_ENGINE)}


def build_extensions() -> None:
    """DeepSpeed compiles its CPU communication helper when first used: not under a memory limit of bench's."""
    from deepspeed.comm.torch import build_shm_op

    build_shm_op()


def preload(families: Iterable[Family] = get_args(Family)) -> None:
    """Import what steps of these families need; a module that is not there is left to the attempt that misses it."""
    for family in families:
        for module in _MODULES.get(family, _ALWAYS):
            with contextlib.suppress(ImportError):
                importlib.import_module(module)
