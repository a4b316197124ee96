"""Whether the kernel killed a process for memory, by its counters.

The kernel's out-of-memory killer sends SIGKILL, as any process may. It increments a counter first, so a counter that
grew between a fork and the end of the child tells the two apart. Killers outside the kernel (systemd-oomd, earlyoom, a
scheduler) increment no counter.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from bench.machine import cgroup

Counts = Mapping[str, int]
"""How many processes the kernel's out-of-memory killer has ended, by the file of the counter, innermost first: this
process's cgroup, then the machine."""


def counts(root: Path = Path("/")) -> Counts:
    """The current counts. Missing files, as on another system, are left out."""
    found = {name: _field(path, "oom_kill") for name, path in _files(root)}
    return {name: count for name, count in found.items() if count is not None}


def killed_since(before: Counts, root: Path = Path("/")) -> str | None:
    """The killer and its counter, in words, if it has ended a process since ``before``; None if not, or if unknown.

    Only the innermost counter decides. A cgroup counts its own processes whichever limit they hit, so if its counter is
    unchanged, a kill that the machine's counter shows happened elsewhere.
    """
    now = counts(root)
    for name, count in before.items():
        if name in now:
            grew = now[name] > count
            return f"the kernel's out-of-memory killer, {name} oom_kill {count} -> {now[name]}" if grew else None
    return None


def _files(root: Path) -> Iterator[tuple[str, Path]]:
    for folder in cgroup.folders(root, "memory")[:1]:
        yield "cgroup memory.oom_control", folder / "memory.oom_control"
    for folder in cgroup.folders(root, None)[:1]:
        yield "cgroup memory.events", folder / "memory.events"
    yield "/proc/vmstat", root / "proc/vmstat"


def _field(path: Path, name: str) -> int | None:
    return next((int(line.split()[1]) for line in cgroup.lines(path) if line.startswith(f"{name} ")), None)
