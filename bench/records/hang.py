"""What a rank was doing during a hang: its place in the code and its latest collectives."""

import itertools
from collections import deque

from bench.records.base import Frozen


class Collective(Frozen):
    """One collective of one rank, as recorded by the process group's flight recorder."""

    group: str
    """The name of the process group; ``0`` is the default group."""
    number: int
    """Sequence number within the group, from 1."""
    operation: str
    """``all_reduce``, ``all_gather``, ..."""
    shapes: tuple[tuple[int, ...], ...]
    """Shapes of the inputs."""
    dtypes: tuple[str, ...]
    finished: bool
    site: str
    """The code that issued it: the innermost function of the workload, with file and line, else the runner's step."""

    def __str__(self) -> str:
        shapes = " ".join("x".join(map(str, shape)) or "scalar" for shape in self.shapes[:2])
        more = f" and {len(self.shapes) - 2} more" if len(self.shapes) > 2 else ""
        dtype = f" of {'/'.join(dict.fromkeys(self.dtypes))}" if self.dtypes else ""
        return f"{self.operation} {shapes}{more}{dtype} in {self.site}"


class Stuck(Frozen):
    """`rank<N>.stuck.json`: what one rank of a hanging attempt was doing."""

    rank: int
    phase: str
    step: int
    steps: int
    """The attempt's stage, its current step and its number of steps, from the rank's last heartbeat."""
    place: str
    """The innermost function of its own code in the thread that trains."""
    stacks: str
    """The stacks of all its threads."""
    collectives: tuple[Collective, ...]
    """The latest collectives, in order."""
    log_tail: str
    """The last lines of its output."""

    @property
    def newest(self) -> Collective | None:
        return self.collectives[-1] if self.collectives else None

    @property
    def waits_at(self) -> Collective | None:
        """The first of the unfinished collectives at the end of the list; over NCCL there may be several."""
        unfinished = itertools.takewhile(lambda one: not one.finished, reversed(self.collectives))
        return next(iter(deque(unfinished, maxlen=1)), None)
