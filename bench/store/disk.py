"""Space on the disk of a run's folder: a reserve for the next result, and one message when the disk is full."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.errors import InputError

KEPT_BYTES = 4 * 2**20
"""Reserved while attempts run, so that a measured result can be stored even if the disk has become full meanwhile."""
_FULL_OR_READ_ONLY = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def keep(folder: Path) -> None:
    """Creates the reserve. Raises OSError when there is no space."""
    _allocate(folder / ".room")


def give_up(folder: Path) -> None:
    """Removes the reserve, so that its space can be used."""
    (folder / ".room").unlink(missing_ok=True)


def check(folder: Path) -> None:
    """Raises OSError if the disk is full or read-only, which may have caused the failure before this check."""
    more = folder / ".room.more"
    try:
        _allocate(more)
    finally:
        more.unlink(missing_ok=True)


def check_folder(folder: Path) -> None:
    """Raises OSError if the folder cannot be made, or nothing can be written to it."""
    existing = next(one for one in (folder, *folder.absolute().parents) if one.exists())
    with TemporaryDirectory(prefix=".bench-", dir=existing):
        pass


@contextmanager
def said_once(folder: Path) -> Iterator[None]:
    """Turns any error of a full or read-only disk into one InputError. Removes the reserve at the end."""
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
    fix = "free space or make it writable, then run the same command to resume; --out chooses another folder"
    if isinstance(error, FileExistsError | NotADirectoryError):
        fix = "a file is in its place: choose another folder with --out"
    return InputError(f"cannot write there: {error.strerror}", where=str(folder), fix=fix)


def _allocate(file: Path) -> None:
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        os.posix_fallocate(descriptor, 0, KEPT_BYTES)
    finally:
        os.close(descriptor)
