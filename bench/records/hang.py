"""Hung ranks: what each was doing, which rank the others wait for, and where their collectives differ first.

The record holds no sends and receives between two ranks: the recorder leaves them out.
"""

import itertools
from collections import deque
from collections.abc import Mapping, Sequence

from bench.records.base import Frozen

DEFAULT_GROUP = "0"
UNEVEN = ("all_to_all", "gather", "scatter")
"""Operations whose ranks may pass tensors of different shapes."""


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


class Difference(Frozen):
    """The first collective of a group that not all ranks issued in the same way."""

    group: str
    number: int
    issued: dict[int, Collective | None]
    """By rank; null if the rank issued no such collective with this number."""


Record = Mapping[int, Sequence[Collective]]
"""The collectives of each rank; a recorder drops the oldest first."""


def first_difference(record: Record) -> Difference | None:
    """The first place where the ranks' collectives differ in operation, shapes or dtypes; None when they never do.

    It compares the numbers that every rank's recorder still holds, and those after a rank's last one.
    """
    for group in dict.fromkeys(one.group for issued in record.values() for one in issued):
        by_rank = {rank: {one.number: one for one in issued if one.group == group} for rank, issued in record.items()}
        # A rank that issued nothing in a group may not be a member; all ranks are members of the default group.
        members = {rank: issued for rank, issued in by_rank.items() if issued or group == DEFAULT_GROUP}
        first = max(min(issued, default=1) for issued in members.values())
        last = max(max(issued, default=0) for issued in members.values())
        for number in range(first, last + 1):
            here = {rank: issued.get(number) for rank, issued in members.items()}
            if len({_kind(one) for one in here.values()}) > 1:
                return Difference(group=group, number=number, issued=here)
    return None


def _kind(one: Collective | None) -> object:
    if one is None:
        return None
    return one.operation if one.operation in UNEVEN else (one.operation, one.shapes, one.dtypes)


def explain(ranks: Sequence[Stuck], world_size: int, measured: Sequence[int] = ()) -> str:
    """One sentence for the reason of a hang: which ranks wait, where, and for which rank.

    Args:
        measured: ranks that had finished, and so did not answer.
    """
    silent = sorted(set(range(world_size)) - {one.rank for one in ranks} - set(measured))
    difference = first_difference({one.rank: one.collectives for one in ranks}) if len(ranks) > 1 else None
    parts = differ(difference) if difference is not None and None not in difference.issued.values() else []
    parts += grouped({one.rank: _position(one) for one in ranks})
    if measured:
        parts.append(f"{ranks_in_words(sorted(measured))} had finished")
    if silent:
        parts.append(f"{ranks_in_words(silent)} did not answer: stopped, or busy in native code")
    return "; ".join(parts)


def differ(difference: Difference, failed_in: Mapping[int, str] | None = None) -> list[str]:
    """What each rank issued at the first collective that differs.

    Args:
        failed_in: by rank, the place where it raised. A collective that was refused is not in its recorder.
    """
    places = failed_in or {}
    issued = grouped(
        {
            rank: f"issued {one}"
            if one
            else f"failed in {places[rank]}"
            if rank in places
            else "issued no such collective"
            for rank, one in difference.issued.items()
        }
    )
    return [f"the ranks differ at collective {_numbered(difference)}", *issued]


def _numbered(one: Difference | Collective) -> str:
    return str(one.number) + ("" if one.group == DEFAULT_GROUP else f" of group {one.group}")


def _position(one: Stuck) -> str:
    """Where a rank is: in a collective if it waits in one, else in its own code."""
    if one.newest is None:
        return f"is in {one.place}, before any collective"
    if one.waits_at is None:
        return f"is in {one.place}, after collective {_numbered(one.newest)}"
    return f"waits at collective {_numbered(one.waits_at)}, {one.waits_at}"


def grouped(words: Mapping[int, str]) -> list[str]:
    """One phrase for all ranks with the same words."""
    ranks: dict[str, list[int]] = {}
    for rank in sorted(words):
        ranks.setdefault(words[rank], []).append(rank)
    return [f"{ranks_in_words(group)} {_said_of(group, what)}" for what, group in ranks.items()]


_VERBS = ("waits", "gathers", "reduces", "needs")


def _said_of(group: Sequence[int], what: str) -> str:
    verb, _, rest = what.partition(" ")
    plural = {"is": "are"}.get(verb) or (verb.removesuffix("s") if verb in _VERBS else verb)
    return f"{plural} {rest}" if len(group) > 1 else what


def ranks_in_words(ranks: Sequence[int]) -> str:
    """``ranks 0, 2``."""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
