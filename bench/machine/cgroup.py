"""The control group of this process, version 2 or 1: its folders and its limits (Linux)."""

import math
from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def cores(root: Path = Path("/")) -> int | None:
    """The CPU time that the group may use, in whole cores, rounded up; None without a limit."""
    shares = [quota / period for quota, period in _quotas(root)]
    return math.ceil(min(shares)) if shares else None


def memory_bytes(root: Path = Path("/")) -> int | None:
    """The memory that all processes of the group may use together; None without a limit."""
    files = [folder / "memory.max" for folder in folders(root, None)]
    files += [folder / "memory.limit_in_bytes" for folder in folders(root, "memory")]
    return min((limit for file in files for limit in _numbers(file)), default=None)


def folders(root: Path, controller: str | None) -> list[Path]:
    """The folders of this process's group and its parent groups, innermost first, as far as they are mounted here.

    Args:
        controller: a controller of version 1; None for version 2.
    """
    member = next(
        (
            path
            for _, controllers, path in (line.split(":", 2) for line in lines(root / "proc/self/cgroup"))
            if (controller in controllers.split(",") if controller else not controllers)
        ),
        None,
    )
    if member is None:
        return []
    for line in lines(root / "proc/self/mountinfo"):
        mount, _, filesystem = line.partition(" - ")
        _, _, _, mounted, point, *_ = mount.split()
        kind, *_, options = filesystem.split()  # the name of the mounted file system may be empty
        is_wanted = kind == "cgroup" and controller in options.split(",") if controller else kind == "cgroup2"
        # A container may see only its own part of the tree, or another part.
        if is_wanted and PurePosixPath(member).is_relative_to(mounted):
            below = PurePosixPath(member).relative_to(mounted)
            return [root / point.lstrip("/") / part for part in (below, *below.parents)]
    return []


def lines(path: Path) -> list[str]:
    """The lines of a file that are not empty; none if it does not exist. A path in them may be of any bytes."""
    try:
        return list(filter(None, path.read_text(errors="surrogateescape").split("\n")))
    except OSError:
        return []


def _quotas(root: Path) -> Iterator[tuple[int, int]]:
    """Pairs (quota, period): microseconds of core time that may be used in each period of wall time."""
    for folder in folders(root, None):
        match _numbers(folder / "cpu.max"):
            case [quota, period]:
                yield quota, period
    for folder in folders(root, "cpu"):
        match [*_numbers(folder / "cpu.cfs_quota_us"), *_numbers(folder / "cpu.cfs_period_us")]:
            case [quota, period]:
                yield quota, period


def _numbers(path: Path) -> list[int]:
    """The numbers in a file, without the values that mean no limit: max, and -1 in version 1."""
    return [int(word) for line in lines(path) for word in line.split() if word.isdecimal()]
