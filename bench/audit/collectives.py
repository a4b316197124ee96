"""`bench audit collectives`: whether all ranks issue the same collectives, for the same modules, and from where.

Ranks that issue different collectives wait for each other forever, or exchange wrong data. On gloo, an audit shows
this in seconds. Point-to-point operations (send, recv) are ignored: ranks may differ in them.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Literal

from bench.audit import unfinished_in_words
from bench.records.base import Frozen
from bench.records.hang import Collective, Difference, differ, first_difference, grouped, ranks_in_words
from bench.records.outcome import Failed, Hang, Oom

Purpose = Literal["forward", "backward", "gradient"]
"""Why a rank communicates for a module or a parameter: to gather its weights, or to reduce its gradient."""
_VERBS: dict[Purpose, str] = {
    "forward": "gathers {} for its forward",
    "backward": "gathers {} for its backward",
    "gradient": "reduces the gradient of {}",
}


class Use(Frozen):
    """One use of a module or a parameter for which the backend communicates."""

    step: int
    purpose: Purpose
    name: str
    """Qualified, in the workload's model."""

    def __str__(self) -> str:
        return _VERBS[self.purpose].format(self.name)


class Issued(Frozen):
    """`audit<N>.json`: one rank's collectives since the creation of its process group."""

    rank: int
    collectives: tuple[Collective, ...]
    failed_in: str | None = None
    """Where a step raised an exception, if one did."""
    uses: tuple[Use, ...] = ()
    """What they were for, in order; empty where the backend's collectives do not depend on it."""


class SiteCount(Frozen):
    """How often one place in the code issued one operation."""

    site: str
    operation: str
    counts: tuple[int, ...]
    """Counts by rank."""


class CollectivesVerdict(Frozen):
    word: Literal["SAME", "DIFFERENT", "NOT SEEN"]
    """NOT SEEN: the steps did not finish for another reason, or nothing was recorded."""
    says: str
    """One sentence."""
    sites: tuple[SiteCount, ...]
    """The most frequent first."""


def judge(issued: Sequence[Issued], world_size: int, ended: Oom | Hang | Failed | None) -> CollectivesVerdict:
    """Whether the ranks agree. ``ended``: the outcome of the steps if they did not finish."""
    if isinstance(ended, Hang) and len(issued) < world_size:
        # A waiting rank wrote no file itself; its server collected its collectives.
        issued = [Issued(rank=one.rank, collectives=one.collectives) for one in ended.stuck]
    word, says = _judge(issued, world_size, ended)
    return CollectivesVerdict(word=word, says=says, sites=count(issued))


def _judge(
    issued: Sequence[Issued], world_size: int, ended: Oom | Hang | Failed | None
) -> tuple[Literal["SAME", "DIFFERENT", "NOT SEEN"], str]:
    record = {one.rank: one.collectives for one in issued}
    parted = _parted({one.rank: one.uses for one in issued}, whole=ended is None)
    difference = first_difference(record) if len(record) > 1 else None
    found = ""
    if difference is not None and not _stopped_early(difference, ended):
        failed_in = {one.rank: one.failed_in for one in issued if one.failed_in}
        found = "; ".join(differ(difference, failed_in))
    elif refused := _refused(issued, ended):
        found = refused
    if found:
        return "DIFFERENT", f"ranks issue different collectives: {'; '.join(filter(None, [found, parted]))}"
    if parted:
        return "DIFFERENT", f"ranks issue equal collectives for different modules, and mix these: {parted}"
    if ended is not None:
        return "NOT SEEN", f"the steps did not finish: {unfinished_in_words(ended)}"
    if len(record) < world_size:
        missing = sorted(set(range(world_size)) - set(record))
        return "NOT SEEN", f"{ranks_in_words(missing)} left no record"
    return _alike(len(issued[0].collectives), world_size, by_name=bool(issued[0].uses))


def _parted(uses: Mapping[int, Sequence[Use]], *, whole: bool) -> str:
    """The first place where ranks use different modules or parameters, in words; empty where they never do.

    Args:
        whole: every rank finished; otherwise one may have used less only because it stopped earlier.
    """
    for used in zip_longest(*uses.values()) if whole else zip(*uses.values(), strict=False):
        if len(set(used)) > 1:
            step = min(use.step for use in used if use is not None)
            here = {rank: str(use or "needs nothing more") for rank, use in zip(uses, used, strict=True)}
            return "; ".join([f"in step {step}", *grouped(here)])
    return ""


def _alike(total: int, world_size: int, *, by_name: bool) -> tuple[Literal["SAME", "NOT SEEN"], str]:
    if world_size == 1:
        return "SAME", f"one rank, {total} collectives: nothing to compare"
    if not total:
        return "NOT SEEN", "torch's flight recorder recorded no collective of this process group"
    named = ", for the same modules" if by_name else ""
    return "SAME", f"all {world_size} ranks issue the same {total} collectives{named}"


def _stopped_early(difference: Difference, ended: Oom | Hang | Failed | None) -> bool:
    """Whether a rank only issued fewer collectives because it raised an exception or ran out of memory."""
    raised = isinstance(ended, Oom) or (isinstance(ended, Failed) and ended.fault != "desync")
    return raised and None in difference.issued.values()


UNKNOWN = "an unknown place"
_FINGERPRINT = re.compile(
    r"Rank (\d+) is running collective: CollectiveFingerPrint\(SequenceNumber=(\d+), OpType=_?(\w+)"
    r"(?:, TensorShape=\[([\d, ]*)\])?"
)
"""What torch reports with ``TORCH_DISTRIBUTED_DEBUG=DETAIL`` for each of two ranks that differ."""


def _refused(issued: Sequence[Issued], ended: Oom | Hang | Failed | None) -> str | None:
    """The difference that torch itself detected before the ranks ran into it, with the places in the code."""
    if not isinstance(ended, Failed):
        return None
    sites = {one.rank: one.failed_in for one in issued}
    number = max((made.number for one in issued for made in one.collectives), default=0) + 1
    found = {(int(rank), operation, shape) for rank, _, operation, shape in _FINGERPRINT.findall(ended.reason)}
    issuers = [
        f"rank {rank} issued {operation.lower()} {shape.replace(', ', 'x')} in {sites.get(rank) or UNKNOWN}"
        for rank, operation, shape in sorted(found)
    ]
    return "; ".join([f"the ranks differ at collective {number}", *issuers]) if len(issuers) > 1 else None


def count(issued: Sequence[Issued]) -> tuple[SiteCount, ...]:
    """How often each rank issued each operation from each place."""
    ranks = sorted(issued, key=lambda one: one.rank)
    counters = [Counter((made.site, made.operation) for made in one.collectives) for one in ranks]
    places = dict.fromkeys(place for counter in counters for place in counter)
    counts = [
        SiteCount(site=site, operation=operation, counts=tuple(counter[site, operation] for counter in counters))
        for site, operation in places
    ]
    return tuple(sorted(counts, key=lambda one: -max(one.counts)))
