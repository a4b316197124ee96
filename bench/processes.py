"""Process trees: a child that ends with its parent, and the end of a whole tree. Imports nothing that takes time."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
LAST_WORDS_S = 1.0
"""How long what is left may go on: the keeper of a rank's log writes until it has all."""
PARENT = "BENCH_LAUNCHER_PID"
"""Names the launcher to its ranks: one that starts slowly may find it gone already."""


def die_with_parent(parent: int | None = None, by: signal.Signals = signal.SIGKILL) -> None:
    """Ask the kernel to kill this process when its parent is gone, however the parent ends (Linux).

    Args:
        parent: who it should be; if it is another by now, this process ends at once.
        by: the signal that ends it.
    """
    if sys.platform != "linux":
        return
    expected = os.getppid() if parent is None else parent
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, by, 0, 0, 0)
    if os.getppid() != expected:  # it went before the kernel knew
        os._exit(1)


def adopt_orphans() -> None:
    """From now on whatever a descendant leaves behind becomes a child of this process (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@contextlib.contextmanager
def children_end_too() -> Iterator[None]:
    """While this process waits for others that know nothing of its end, such as a compiler, it takes them along."""

    def end(*_: object) -> None:
        kill(tree(os.getpid())[1:], timeout_s=0)
        os._exit(1)

    before = signal.signal(signal.SIGTERM, end)
    die_with_parent(by=signal.SIGTERM)
    try:
        yield
    finally:
        die_with_parent()
        signal.signal(signal.SIGTERM, before)


def anyone_has_open(file: Path) -> bool:
    """Whether a process that this one may look at holds the file open."""
    import psutil

    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(Path(opened.path) == file for opened in process.open_files()):
                return True
    return False


def end_orphans() -> None:
    """End what descendants have started and left to this process, which adopts it, whatever session it leads."""
    import psutil

    psutil.wait_procs(tree(os.getpid())[1:], timeout=LAST_WORDS_S)
    while (found := tree(os.getpid())[1:]) and not kill(found):
        pass


def signal_name(number: int) -> str:
    """``SIGKILL``, or the number of one that has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def runs(pid: int) -> bool:
    """Whether the process is there and has not ended; one that its parent has not yet asked after has."""
    import psutil

    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


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
