"""What torch, accelerate and DeepSpeed import only once they are used.

A rank server imports it for all its children. An attempt imports its own part before its memory limit is set, so that
the limit counts what training takes and nothing else.
"""

import contextlib
import fcntl
import importlib
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import get_args

from bench import machine, processes
from bench.backends import FAMILIES, Family

_ALWAYS = ("torch._dynamo", "torch.distributed.algorithms.ddp_comm_hooks", "transformers.integrations.deepspeed")


def build_extensions() -> None:
    """DeepSpeed compiles its CPU communication helper when first used: not under a memory limit of bench's.

    torch guards the build by a file that a killed process leaves behind, and for which all later ones wait for ever
    (``torch.utils.file_baton``). A kernel lock ends with its holder; who has it may take a file away that nobody
    holds open.
    """
    from deepspeed.comm.torch import build_shm_op
    from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder
    from torch.utils import cpp_extension

    folder = Path(cpp_extension._get_build_directory(ShareMemCommBuilder.NAME, verbose=False))
    with (folder / "bench.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        _wait_for_baton(folder / "lock")
        with processes.children_end_too(), _compiler_named():
            build_shm_op()


@contextlib.contextmanager
def _compiler_named() -> Iterator[None]:
    """Where there is none, torch's error shows the whole build, and not what is missing."""
    try:
        yield
    except RuntimeError as error:
        if shutil.which(name := machine.compiler()):
            raise
        raise ImportError(f"DeepSpeed compiles a communication helper on a CPU, and there is no {name}") from error


def _wait_for_baton(file: Path) -> None:
    """Look again while somebody has it open: who is just being killed lets go of it after the kernel lock."""
    while file.exists():
        if processes.anyone_has_open(file):
            time.sleep(0.2)
        else:
            file.unlink(missing_ok=True)


def preload(families: Iterable[Family] = get_args(Family)) -> None:
    """Import what steps of these families need; a module that is not there is left to the attempt that misses it."""
    for family in families:
        for module in (*_ALWAYS, *FAMILIES[family].preloads):
            with contextlib.suppress(ImportError):
                importlib.import_module(module)
