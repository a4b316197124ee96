"""`bench audit collectives`: whether all ranks issue the same collectives, and from where.

Ranks that issue unlike ones wait for each other for ever, or exchange nonsense. On gloo that shows in seconds.
Point-to-point operations (send, recv) are not looked at: ranks rightly differ in them.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from bench.audit.unfinished import in_words
from bench.diagnosis.collectives import Difference, first_difference
from bench.diagnosis.hang import differ, ranks_in_words
from bench.records.base import Frozen
from bench.records.hang import Collective
from bench.records.outcome import Failed, Hang, Oom


class Issued(Frozen):
    """`audit<N>.json`: one rank's collectives, from the making of its process group on."""

    rank: int
    collectives: tuple[Collective, ...]
    failed_in: str | None = None
    """Where a step raised, if one did."""


class SiteCount(Frozen):
    """How often one place of the code asked for one operation."""

    site: str
    operation: str
    counts: tuple[int, ...]
    """By rank."""


class CollectivesVerdict(Frozen):
    word: Literal["SAME", "DIFFERENT", "NOT SEEN"]
    """NOT SEEN: the steps did not end, and not for that, or nothing was recorded."""
    says: str
    """One sentence."""
    sites: tuple[SiteCount, ...]
    """The busiest first."""


def judge(issued: Sequence[Issued], world_size: int, ended: Oom | Hang | Failed | None) -> CollectivesVerdict:
    """Whether the ranks agree.

    Args:
        ended: what the steps came to when they did not end well.
    """
    if isinstance(ended, Hang) and len(issued) < world_size:
        # A rank that waits wrote nothing itself; it was asked.
        issued = [Issued(rank=one.rank, collectives=one.collectives) for one in ended.stuck]
    word, says = _judge(issued, world_size, ended)
    return CollectivesVerdict(word=word, says=says, sites=count(issued))


def _judge(
    issued: Sequence[Issued], world_size: int, ended: Oom | Hang | Failed | None
) -> tuple[Literal["SAME", "DIFFERENT", "NOT SEEN"], str]:
    record = {one.rank: one.collectives for one in issued}
    found = first_difference(record) if len(record) > 1 else None
    if found is not None and not _stopped_early(found, ended):
        failed_in = {one.rank: one.failed_in for one in issued if one.failed_in}
        return "DIFFERENT", f"ranks issue unlike collectives: {'; '.join(differ(found, failed_in))}"
    if refused := _refused(issued, ended):
        return "DIFFERENT", f"ranks issue unlike collectives: {refused}"
    if ended is not None:
        return "NOT SEEN", f"the steps did not end: {in_words(ended)}"
    if len(record) < world_size:
        missing = sorted(set(range(world_size)) - set(record))
        return "NOT SEEN", f"{ranks_in_words(missing)} left no record"
    return _alike(len(issued[0].collectives), world_size)


def _alike(total: int, world_size: int) -> tuple[Literal["SAME", "NOT SEEN"], str]:
    if world_size == 1:
        return "SAME", f"one rank, {total} collectives: nothing to disagree with"
    if not total:
        return "NOT SEEN", "no collective was recorded: torch's flight recorder has none of this process group"
    return "SAME", f"all {world_size} ranks issue the same {total} collectives"


def _stopped_early(found: Difference, ended: Oom | Hang | Failed | None) -> bool:
    """A rank that raised, or ran out of memory, asks for none from then on: that is no other way through the code."""
    raised = isinstance(ended, Oom) or (isinstance(ended, Failed) and ended.fault != "desync")
    return raised and None in found.issued.values()


UNKNOWN = "an unknown place"
_FINGERPRINT = re.compile(
    r"Rank (\d+) is running collective: CollectiveFingerPrint\(SequenceNumber=(\d+), OpType=_?(\w+)"
    r"(?:, TensorShape=\[([\d, ]*)\])?"
)
"""What torch says under ``TORCH_DISTRIBUTED_DEBUG=DETAIL`` of each of two ranks that part."""


def _refused(issued: Sequence[Issued], ended: Oom | Hang | Failed | None) -> str | None:
    """The difference that torch itself saw before it let the ranks run into it, with the places that asked."""
    if not isinstance(ended, Failed):
        return None
    sites = {one.rank: one.failed_in for one in issued}
    number = max((made.number for one in issued for made in one.collectives), default=0) + 1
    asked = [
        f"rank {rank} asked for {operation.lower()} {shape.replace(', ', 'x')} in {sites.get(int(rank)) or UNKNOWN}"
        for rank, _, operation, shape in sorted(set(_FINGERPRINT.findall(ended.reason)))
    ]
    return "; ".join([f"the ranks part at collective {number}", *asked]) if len(asked) > 1 else None


def count(issued: Sequence[Issued]) -> tuple[SiteCount, ...]:
    """Per place and operation, how often each rank asked."""
    ranks = sorted(issued, key=lambda one: one.rank)
    counters = [Counter((made.site, made.operation) for made in one.collectives) for one in ranks]
    places = dict.fromkeys(place for counter in counters for place in counter)
    found = [
        SiteCount(site=site, operation=operation, counts=tuple(counter[site, operation] for counter in counters))
        for site, operation in places
    ]
    return tuple(sorted(found, key=lambda one: -max(one.counts)))
