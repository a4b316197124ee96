"""Which rank makes the others wait, by how much, and in which phase. Pure arithmetic on raw samples.

*The rule.* A rank is late in a step if its own work takes longer than that of every other rank, by more than `SHARE` of
the step. If no rank were slower than another, each of R ranks would be the latest in a step with a probability of at
most 1/R. A straggler is late in so many steps that chance explains it with a probability of at most 1 %, for all ranks
together (binomial tail, Bonferroni). The rule counts steps and uses no variance, so a few disturbed steps decide
nothing. Steps that follow each other are not independent: other work that shares one core with a rank for the whole
phase window slows this rank, and is reported, too.

*What it costs.* The median over steps of the straggler's own work minus that of the next rank.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb
from statistics import fmean, median

SHARE = 0.05
"""Share of a step by which a rank must exceed every other rank."""
CHANCE = 0.01
"""Probability with which ranks that are alike may show a straggler."""

RankWork = Mapping[str, Sequence[float]]
"""One rank's own work: seconds of each step, by phase."""


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """A rank that makes the others wait."""

    rank: int
    phase: str
    """Where most of the difference comes from."""
    cost_s: float
    share: float
    """``cost_s`` as a share of the step."""
    n_late: int
    n_steps: int


def straggler(ranks: Sequence[RankWork], steps_s: Sequence[float]) -> Straggler | None:
    """The rank that the others wait for, if there is one.

    Args:
        ranks: by number, each with the same phases and steps. At least two.
        steps_s: how long each of these steps takes.
    """
    own_s = [[sum(parts) for parts in zip(*work.values(), strict=True)] for work in ranks]
    excess_s = [
        [step - max(others) for step, *others in zip(own, *(own_s[:rank] + own_s[rank + 1 :]), strict=True)]
        for rank, own in enumerate(own_s)
    ]
    n_late = [sum(excess > SHARE * median(steps_s) for excess in of_rank) for of_rank in excess_s]
    rank = max(range(len(ranks)), key=n_late.__getitem__)
    if n_late[rank] < (needed(len(steps_s), len(ranks)) or len(steps_s) + 1):
        return None
    cost_s = median(excess_s[rank])
    return Straggler(
        rank=rank,
        phase=_phase(rank, ranks),
        cost_s=cost_s,
        share=cost_s / median(steps_s),
        n_late=n_late[rank],
        n_steps=len(steps_s),
    )


def needed(n_steps: int, n_ranks: int) -> int | None:
    """The fewest late steps that name a rank; None if even all steps are too few."""
    late = [n for n in range(1, n_steps + 1) if n_ranks * _chance(n, n_steps, 1 / n_ranks) <= CHANCE]
    return min(late, default=None)


def _chance(n_late: int, n_steps: int, p: float) -> float:
    """Of ``n_late`` or more of ``n_steps``."""
    return sum(comb(n_steps, n) * p**n * (1 - p) ** (n_steps - n) for n in range(n_late, n_steps + 1))


def _phase(rank: int, ranks: Sequence[RankWork]) -> str:
    def excess_s(phase: str) -> float:
        others = [fmean(work[phase]) for number, work in enumerate(ranks) if number != rank]
        return fmean(ranks[rank][phase]) - median(others)

    return max(ranks[rank], key=excess_s)
