"""Modules that torch, accelerate and DeepSpeed import only when they are first used.

A rank server imports them before it forks, for the backends of the sweep. An attempt imports those of its own backend
before its memory limit is set, so that the limit counts only what training takes.
"""

import contextlib
import fcntl
import importlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from bench import machine, processes

_ALWAYS = ("torch._dynamo", "torch.distributed.algorithms.ddp_comm_hooks")


def build_extensions(builders: Iterable[str]) -> None:
    """Build now, without a memory limit, what DeepSpeed would compile on first use.

    Args:
        builders: see `bench.backends.extensions`.

    torch guards the build with a file. A killed process leaves it behind, and later builds then wait for it forever
    (``torch.utils.file_baton``). The kernel releases ``bench.lock`` when its holder ends; the holder may remove a guard
    that no process has open.

    torch's own folder is one for each user, and each virtual environment would build there anew.
    """
    if sys.prefix != sys.base_prefix and os.access(sys.prefix, os.W_OK):
        os.environ.setdefault("TORCH_EXTENSIONS_DIR", f"{sys.prefix}/torch_extensions")
    from deepspeed.accelerator import get_accelerator
    from deepspeed.comm.torch import build_shm_op
    from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder

    for builder in builders:
        if builder == ShareMemCommBuilder.__name__:
            _build(ShareMemCommBuilder.NAME, build_shm_op)
        elif (made := get_accelerator().create_op_builder(builder)) is not None:
            _build(made.name, made.load)


def _build(name: str, build: Callable[[], object]) -> None:
    from torch.utils import cpp_extension

    folder = Path(cpp_extension._get_build_directory(name, verbose=False))
    with (folder / "bench.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        _wait_for_baton(folder / "lock")
        with processes.children_end_too(), _compiler_named(name):
            build()


@contextlib.contextmanager
def _compiler_named(extension: str) -> Iterator[None]:
    """Name a missing compiler. torch's error shows the whole build, but not what is missing."""
    try:
        yield
    except RuntimeError as error:
        if shutil.which(name := machine.compiler()):
            raise
        raise ImportError(f"DeepSpeed compiles its extension {extension}, and there is no {name}") from error


def _wait_for_baton(file: Path) -> None:
    """Wait while a process has it open: a killed process closes it after it releases the kernel lock."""
    while file.exists():
        if processes.anyone_has_open(file):
            time.sleep(0.2)
        else:
            sys.stdout.write(f"removed the lock {file}: its process was killed, and no other has it open\n")
            file.unlink(missing_ok=True)


def preload(modules: Iterable[str]) -> None:
    """Import what every step needs, and ``modules``: see `bench.backends.preloads`.

    A module that is missing is no error here: the attempt that needs it reports it.
    """
    with _looks_missing("mlflow"):  # DeepSpeed's autotuner would import it, which takes longer than all of DeepSpeed
        for module in (*_ALWAYS, *modules):
            with contextlib.suppress(ImportError):
                importlib.import_module(module)


@contextlib.contextmanager
def _looks_missing(module: str) -> Iterator[None]:
    """Imports take ``module`` for one that is not installed, unless it is imported already."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[module]
