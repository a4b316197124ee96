"""Process trees: a child that ends with its parent, and the end of a whole tree. Imports nothing that takes time."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
PARENT = "BENCH_LAUNCHER_PID"
"""Names the launcher to its ranks: one that starts slowly may find it gone already."""


def die_with_parent(parent: int | None = None) -> None:
    """Ask the kernel to kill this process when its parent is gone, however the parent ends (Linux).

    Args:
        parent: who it should be; if it is another by now, this process ends at once.
    """
    if sys.platform != "linux":
        return
    expected = os.getppid() if parent is None else parent
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != expected:  # it went before the kernel knew
        os._exit(1)


def signal_name(number: int) -> str:
    """``SIGKILL``, or the number of one that has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def tree(pid: int) -> list[psutil.Process]:
    """The process and all below it; empty when it is gone."""
    import psutil

    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def kill(processes: Sequence[psutil.Process], timeout_s: float = 5) -> list[psutil.Process]:
    """Kill the processes, whatever session they are in, and wait until they are gone.

    Returns:
        Those that are still there after ``timeout_s``.
    """
    import psutil

    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    _, alive = psutil.wait_procs(processes, timeout=timeout_s)
    return [process for process in alive if process.is_running()]
