"""The tries of an attempt: the earlier ones below `superseded/`, and those that ended with their machine, which have a
`lost.json` and no result."""

from pathlib import Path

from bench.records.base import Frozen
from bench.store import spool


class Lost(Frozen):
    """Why nobody finished the attempt."""

    reason: str


def aside(root: Path, folder: Path) -> list[Path]:
    """The superseded folders of one attempt, the oldest first."""
    parent = (root / "superseded" / folder.relative_to(root / "attempts")).parent
    found = {number: file for file in parent.glob(f"{folder.name}.*") if (number := file.suffix[1:]).isdigit()}
    return [found[number] for number in sorted(found, key=int)]


def lose(root: Path, cell: str, reason: str) -> int:
    """Mark the attempts of a cell that have begun and have no result. Returns how many there are."""
    begun = [spec.parent for spec in (root / "attempts" / cell).glob("b*/spec.json")]
    left = [one for one in begun if not (one / "result.json").exists() and not (one / "lost.json").exists()]
    for one in left:
        spool.write(one / "lost.json", Lost(reason=reason))
    return len(left)


def lost(root: Path, folder: Path) -> list[str]:
    """Why the tries of an attempt were lost since it last had a result, the oldest first."""
    found: list[str] = []
    for one in reversed([*aside(root, folder), folder]):
        if (one / "result.json").exists():
            break
        if (why := spool.read(one / "lost.json", Lost)) is not None:
            found.insert(0, why.reason)
    return found
