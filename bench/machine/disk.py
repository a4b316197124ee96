"""Room on the disk of a run's folder: kept for what is measured, and said once where there is none."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bench.errors import InputError

KEPT_BYTES = 4 * 2**20
"""Held while attempts run, so that one that was measured can be stored on a disk that has become full meanwhile."""
_FULL_OR_READ_ONLY = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def keep(folder: Path) -> None:
    """Raises OSError when there is no room."""
    _allocate(folder / ".room")


def give_up(folder: Path) -> None:
    (folder / ".room").unlink(missing_ok=True)


def check(folder: Path) -> None:
    """Raises OSError if the disk is full or read-only, which may have caused the failure before this check."""
    more = folder / ".room.more"
    try:
        _allocate(more)
    finally:
        more.unlink(missing_ok=True)


@contextmanager
def said_once(folder: Path) -> Iterator[None]:
    """A disk that is full or read-only becomes one message, whatever was being written; kept room is given up."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL_OR_READ_ONLY:
            raise
        raise refused(folder, error) from error
    finally:
        with suppress(OSError):
            give_up(folder)


def refused(folder: Path, error: OSError) -> InputError:
    return InputError(
        f"cannot write there: {error.strerror}",
        where=str(folder),
        fix="once it can be written the same command goes on from there; --out chooses another folder",
    )


def _allocate(file: Path) -> None:
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        os.posix_fallocate(descriptor, 0, KEPT_BYTES)
    finally:
        os.close(descriptor)
