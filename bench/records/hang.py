"""What a rank was doing in a hang: its place in the code and its newest collectives."""

import itertools
from collections import deque

from bench.records.base import Frozen


class Collective(Frozen):
    """One collective of one rank, as the process group's flight recorder saw it."""

    group: str
    """The process group's name: ``0`` is the default one."""
    number: int
    """Sequence number within the group, from 1."""
    operation: str
    """``all_reduce``, ``all_gather``, ..."""
    shapes: tuple[tuple[int, ...], ...]
    """Of the inputs."""
    dtypes: tuple[str, ...]
    finished: bool
    site: str
    """Who asked for it: the innermost function of the workload, with file and line; else the step of the runner."""

    def __str__(self) -> str:
        shapes = " ".join("x".join(map(str, shape)) or "scalar" for shape in self.shapes[:2])
        more = f" and {len(self.shapes) - 2} more" if len(self.shapes) > 2 else ""
        dtype = f" of {'/'.join(dict.fromkeys(self.dtypes))}" if self.dtypes else ""
        return f"{self.operation} {shapes}{more}{dtype} in {self.site}"


class Stuck(Frozen):
    """`rank<N>.stuck.json`: one rank, asked where it stands."""

    rank: int
    phase: str
    step: int
    steps: int
    """As in its beats."""
    place: str
    """The innermost function of its own code in the thread that trains."""
    stacks: str
    """Of all its threads."""
    collectives: tuple[Collective, ...]
    """The newest, oldest first."""
    log_tail: str
    """The last lines of its output."""

    @property
    def newest(self) -> Collective | None:
        return self.collectives[-1] if self.collectives else None

    @property
    def waits_at(self) -> Collective | None:
        """The oldest of the unfinished that end the list: over NCCL a rank asks for several before it waits."""
        unfinished = itertools.takewhile(lambda one: not one.finished, reversed(self.collectives))
        return next(iter(deque(unfinished, maxlen=1)), None)
