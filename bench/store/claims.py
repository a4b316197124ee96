"""Which process measures which cell, where several processes share a run folder: `claims/<cell>` names the owner."""

import fcntl
from collections.abc import Callable
from pathlib import Path

from bench.store import spool


class Claims:
    """The claims of one run folder.

    Args:
        owner: this process. Of another word than every other one.
        is_over: whether an owner has ended; its cells are free again.
    """

    def __init__(self, root: Path, owner: str, is_over: Callable[[str], bool]) -> None:
        self._folder, self._owner, self._is_over = root / "claims", owner, is_over

    def take(self, cell: str) -> bool:
        """Claim a cell, by its slug. Returns whether it is this process's."""
        self._folder.mkdir(exist_ok=True)
        with (self._folder / ".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            owner = owner_of(self._folder.parent, cell)
            if owner not in (None, self._owner) and not self._is_over(owner):
                return False
            if owner != self._owner:
                spool.write_text(self._folder / cell, self._owner)
            return True


def owner_of(root: Path, cell: str) -> str | None:
    try:
        return (root / "claims" / cell).read_text()
    except FileNotFoundError:
        return None


def owned_by(root: Path, owner: str) -> list[str]:
    """The cells that an owner has claimed."""
    cells = (file.name for file in (root / "claims").glob("*") if not file.name.startswith("."))
    return [cell for cell in cells if owner_of(root, cell) == owner]
