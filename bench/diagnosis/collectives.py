"""The first collective that ranks issued differently.

The record holds no sends and receives between two ranks: the recorder leaves them out.
"""

from collections.abc import Mapping, Sequence

from bench.records.base import Frozen
from bench.records.hang import Collective

DEFAULT_GROUP = "0"
UNEVEN = ("all_to_all", "gather", "scatter")
"""Operations whose ranks may pass tensors of different shapes."""


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
