"""One run at a time uses a run folder: a lock that the system takes back however the run ends."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.errors import InputError
from bench.store import disk


@contextmanager
def held(root: Path, *, shared: bool = False) -> Iterator[None]:
    """Hold the folder's lock. Its file names this process.

    Args:
        shared: with others that share it, too.

    Raises:
        InputError: another process holds it, or the folder cannot be written.
    """
    try:
        lock = os.open(root / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise disk.refused(root, error) from error
    try:
        _lock(lock, root, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        with disk.said_once(root):
            os.ftruncate(lock, 0)
            os.pwrite(lock, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(lock)


def is_held(root: Path) -> bool:
    """Whether another process holds the lock alone."""
    try:
        lock = os.open(root / ".lock", os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _holder(lock) != str(os.getpid())
    except OSError:
        return False
    finally:
        os.close(lock)
    return False


def _holder(lock: int) -> str:
    return os.pread(lock, 32, 0).decode(errors="replace").strip()


def _lock(lock: int, root: Path, kind: int) -> None:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise InputError(
            f"another bench (process {_holder(lock)}) is running in this folder",
            where=str(root),
            fix="wait for it, or choose another folder with --out",
        ) from error
    except OSError as error:
        raise InputError(
            f"its file system cannot lock files: {error.strerror}",
            where=str(root),
            fix="choose a folder on another disk with --out",
        ) from error
