"""Which process measures which cell, where several processes share a run folder.

`claims/<cell>.<n>` names the nth owner of a cell; the last one counts. No claim is ever changed or removed. Each is
made by a link, of which only one succeeds, on NFS too, whatever a node remembers of the folder.
"""

import os
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

from bench.store import spool


class Claims:
    """The claims of one run folder.

    Args:
        owner: this process. Of another word than every other one.
        is_over: whether nothing of an owner runs any more; its cells are free again.
    """

    def __init__(self, root: Path, owner: str, is_over: Callable[[str], bool]) -> None:
        self._root, self._owner, self._is_over = root, owner, is_over

    def take(self, cell: str) -> bool:
        """Claim a cell, by its slug. Returns whether it is this process's."""
        owners = list(_owners(self._root, cell))
        if owners and owners[-1] == self._owner:
            return True
        if owners and not self._is_over(owners[-1]):
            return False
        return self._add(cell, len(owners))

    def holds(self, cell: str) -> bool:
        """Whether a cell is this process's. Another one may have taken it for dead."""
        return owner_of(self._root, cell) == self._owner

    def _add(self, cell: str, number: int) -> bool:
        """Become the owner with this number, unless another process has just done so."""
        folder = self._root / "claims"
        folder.mkdir(exist_ok=True)
        own = folder / f".{cell}.{self._owner}.{os.getpid()}"
        own.write_text(self._owner)
        try:
            os.link(own, folder / f"{cell}.{number}")
        except FileExistsError:  # also if a network's file system repeats a link that it has made
            return self.holds(cell)
        finally:
            own.unlink()
        return True


def _owners(root: Path, cell: str) -> Iterator[str]:
    """All owners of a cell, the first one first."""
    for number in count():
        owner = spool.content(root / "claims" / f"{cell}.{number}")
        if owner is None:
            return
        yield owner.decode()


def owner_of(root: Path, cell: str) -> str | None:
    return next(reversed(list(_owners(root, cell))), None)


def ever_owned_by(root: Path, owner: str) -> list[str]:
    """The cells that an owner has claimed. Others may own some of them now."""
    found = (file.name.rpartition(".")[0] for file in (root / "claims").glob("*.*") if file.name[0] != ".")
    return [cell for cell in sorted(set(found)) if owner in _owners(root, cell)]
