"""The tries of an attempt or a walk: the earlier ones below `superseded/`, and those that ended with their machine,
which have a `lost.json` and no result."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from bench.records.base import Frozen
from bench.store import spool


class Lost(Frozen):
    """Why nobody finished it."""

    reason: str


def aside(root: Path, folder: Path) -> list[Path]:
    """The superseded folders of one attempt, the oldest first."""
    parent = (root / "superseded" / folder.relative_to(root / "attempts")).parent
    found = {number: file for file in parent.glob(f"{folder.name}.*") if (number := file.suffix[1:]).isdigit()}
    return [found[number] for number in sorted(found, key=int)]


def underway(root: Path, cells: Sequence[str]) -> Path | None:
    """The folder of the attempt or walk that began last in these cells; None if it has ended, or was lost before."""
    begun = (spec for cell in cells for spec in (root / "attempts" / cell).glob("*/spec.json"))
    newest = max(begun, key=_written_ns, default=None)
    ended = newest is None or any(newest.with_name(name).exists() for name in ("result.json", "lost.json"))
    return None if newest is None or ended else newest.parent


def _written_ns(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except FileNotFoundError:  # another process has just set it aside
        return 0


def lose(folder: Path, reason: str) -> None:
    """Mark an attempt or a walk that nobody finishes."""
    with suppress(FileNotFoundError):  # somebody has just set it aside
        spool.write(folder / "lost.json", Lost(reason=reason))


def lost(root: Path, folder: Path) -> list[str]:
    """Why the tries of an attempt were lost since it last had a result, the oldest first."""
    found: list[str] = []
    for one in reversed([*aside(root, folder), folder]):
        if (one / "result.json").exists():
            break
        if (why := spool.whole(one / "lost.json", Lost)) is not None:
            found.insert(0, why.reason)
    return found
