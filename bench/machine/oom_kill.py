"""Whether a process that left no word ran out of memory: the kernel's counters, and its log's last lines.

The out-of-memory killer sends SIGKILL, as anybody may. It counts first, so a count that grew between a fork and the
child's end tells them apart. Killers outside the kernel (systemd-oomd, earlyoom, a scheduler) count nowhere.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.machine import cgroup


@dataclass(frozen=True)
class Counters:
    """How many processes the kernel's out-of-memory killer has ended so far."""

    oom_kill: dict[str, int]
    """By the file that says so, the narrowest first: this process's cgroup, then the machine."""

    @classmethod
    def read(cls, root: Path = Path("/")) -> "Counters":
        """The counters as they are now; files that are missing, as on another system, are left out."""
        counts = {name: _field(path, "oom_kill") for name, path in _files(root)}
        return cls({name: count for name, count in counts.items() if count is not None})


def killed_since(before: Counters, root: Path = Path("/")) -> str | None:
    """The killer and its count, in words, when it has struck since ``before``; None when not, or not known.

    The narrowest counter decides alone. A cgroup counts its own processes whichever limit they hit, so when it stands
    still, a kill that the machine counts was elsewhere.
    """
    now = Counters.read(root).oom_kill
    for name, count in before.oom_kill.items():
        if name in now:
            grew = now[name] > count
            return f"the kernel's out-of-memory killer, {name} oom_kill {count} -> {now[name]}" if grew else None
    return None


_ABORT = re.compile(
    r"""
    ^terminate\ called\ after\ throwing\ an\ instance\ of\ '(?:std::bad_alloc|c10::OutOfMemoryError)'
    |^terminate\ called\ after\ throwing\ an\ instance\ of\ '[\w:]+'\n\ +what\(\):\ +
        (?:CUDA\ out\ of\ memory\.|CUDA\ error:\ out\ of\ memory$
        |\[enforce\ fail\ at\ .*DefaultCPUAllocator:\ (?:can't\ allocate|not\ enough)\ memory:)
    |^libc\+\+abi:\ terminating\ .*\ of\ type\ (?:std::bad_alloc|c10::OutOfMemoryError)
    |^memory\ allocation\ of\ \d+\ bytes\ failed  # Rust
    """,
    re.MULTILINE | re.VERBOSE,
)


def aborted_by_bad_alloc(log_tail: str) -> bool:
    """Whether the end of a process's log says that native code aborted because an allocation failed (SIGABRT)."""
    return _ABORT.search(log_tail) is not None


def _files(root: Path) -> Iterator[tuple[str, Path]]:
    for folder in cgroup.folders(root, "memory")[:1]:
        yield "cgroup memory.oom_control", folder / "memory.oom_control"
    for folder in cgroup.folders(root, None)[:1]:
        yield "cgroup memory.events", folder / "memory.events"
    yield "/proc/vmstat", root / "proc/vmstat"


def _field(path: Path, name: str) -> int | None:
    return next((int(line.split()[1]) for line in cgroup.lines(path) if line.startswith(f"{name} ")), None)
