"""Processes: have a child end with its parent, end a whole tree, and bound a heap. Imports nothing slow."""

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
"""How long remaining processes may run on: the process that writes a rank's log needs time to finish."""
PARENT = "BENCH_LAUNCHER_PID"
"""Variable with the launcher's process id: a rank that starts slowly may find that its launcher has ended."""

LARGE_BYTES = 2**20
MALLOPT = {"MALLOC_TRIM_THRESHOLD_": -1, "MALLOC_MMAP_THRESHOLD_": -3}
"""Variables of glibc, and their numbers in malloc.h."""


def malloc_variables() -> dict[str, str]:
    """Have a process that has not started map each large block by itself, and return it when it is freed.

    glibc otherwise raises the size from which it maps a block with the sizes that are freed (mallopt(3)). Smaller
    blocks come from its heap, which grows by chance where sizes vary: the peaks of one batch differed by 2.8 × between
    launches, and a batch that had fit ran out of memory later. Steps take up to 8 % longer.

    Returns:
        Variables, without those that the user has set.
    """
    return {name: str(LARGE_BYTES) for name in MALLOPT if name not in os.environ}


def map_large_blocks() -> None:
    """`malloc_variables` for this process. Where there is no glibc, nothing."""
    with contextlib.suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for name in malloc_variables():
            mallopt(MALLOPT[name], LARGE_BYTES)


def die_with_parent(parent: int | None = None, by: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel end this process when its parent ends, for any reason (Linux).

    Args:
        parent: the expected parent; if this process has another one by now, it ends at once.
        by: the signal that ends this process.
    """
    if sys.platform != "linux":
        return
    expected = os.getppid() if parent is None else parent
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, by, 0, 0, 0)
    if os.getppid() != expected:  # the parent ended before the call
        os._exit(1)


def adopt_orphans() -> None:
    """From now on, descendants of this process whose parent ends become its children (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@contextlib.contextmanager
def children_end_too() -> Iterator[None]:
    """Inside the context, the children of this process, such as a compiler, end when it is ended."""

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
    """Whether a process that this one may inspect has the file open."""
    import psutil

    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(Path(opened.path) == file for opened in process.open_files()):
                return True
    return False


def end_orphans() -> None:
    """End the processes that this one has adopted, in any session."""
    import psutil

    psutil.wait_procs(tree(os.getpid())[1:], timeout=LAST_WORDS_S)
    while (orphans := tree(os.getpid())[1:]) and not kill(orphans):
        pass


def signal_name(number: int) -> str:
    """``SIGKILL``, or the number of one that has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def runs(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    import psutil

    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def tree(pid: int) -> list[psutil.Process]:
    """The process and all its descendants; empty if it has ended."""
    import psutil

    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def kill(processes: Sequence[psutil.Process], timeout_s: float = 5) -> list[psutil.Process]:
    """Kill the processes, in any session, and wait until they have ended.

    Returns:
        Those that still run after ``timeout_s``.
    """
    import psutil

    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    _, alive = psutil.wait_procs(processes, timeout=timeout_s)
    return [process for process in alive if process.is_running()]
