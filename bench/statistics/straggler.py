"""Which rank makes the others wait, by how much, and in which phase. Pure arithmetic on raw samples.

*The rule.* A rank is late in a step if its own work exceeds that of every other rank by more than `SHARE` of the median
step. A straggler is late in at least `USUAL` of the steps, in the whole step or in one phase, and costs more than
`SHARE` of the step. If no rank were slower than another, each of R ranks would be late with a probability of at most
1/R; a straggler is late so often that chance explains it with a probability of at most 1 % for all ranks together
(binomial tail, Bonferroni). The bound is that of one such series. Seven phases with the same noise, far above `SHARE`,
are more tries: in simulations of two ranks, they give 5 % with 8 steps and about 1 % with 10. The rule counts steps and
uses no variance.

*Why a step must be late by a share.* Steps that follow each other are not independent: other work on the machine slows
the same rank by some percent for many steps. 100 attempts without a straggler, measured on two ranks of a shared
machine, have 4,120 windows of 10 steps. In 92 of them, the rank that costs more has the most own work in every step;
in one, it is late in every step. Of their 3,120 windows of 20 steps, no rank is late in the 17 that are needed. Other
work that shares a core with one rank for the whole window slows this rank, and is reported, too.

*What it misses.* Two ranks need every one of 10 steps, and 17 of 20. With noise of 2 % on each rank, a rank that is
10 % slower is named in about half of windows of 10 steps, and in nearly all of 20.

*What it costs.* The median over steps of the straggler's own work minus that of the rank that is next to it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import count
from math import ceil, comb
from statistics import median

SHARE = 0.05
"""Share of a step that a straggler must cost."""
USUAL = 0.75
"""Share of the steps in which a straggler must be late, however many there are."""
CHANCE = Fraction(1, 100)
"""Probability with which ranks that are alike may be late so often."""

RankWork = Mapping[str, Sequence[float]]
"""One rank's own work: seconds of each step, by phase."""


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """A rank that makes the others wait."""

    rank: int
    phase: str
    """Where most of the difference comes from; if the step as a whole is late too rarely, what is late most often."""
    cost_s: float
    share: float
    """``cost_s`` as a share of the step."""
    n_late: int
    """Steps in which it is late: as a whole or, if these are too few, in ``phase``."""
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
    enough = needed(len(steps_s), len(ranks))
    if enough is None or cost_s <= SHARE * step_s:
        return None
    medians_s = {phase: median(excess_s) for phase, excess_s in phases_s.items()}
    n_late = {phase: _late(excess_s, step_s) for phase, excess_s in phases_s.items()}
    if (late := _late(whole_s, step_s)) >= enough:
        phase = max(medians_s, key=medians_s.__getitem__)
    else:  # the noise of other phases may hide a phase that is late in nearly every step
        phase = max(n_late, key=lambda phase: (n_late[phase], medians_s[phase]))
        late = n_late[phase]
    if late < enough:
        return None
    return Straggler(rank=rank, phase=phase, cost_s=cost_s, share=cost_s / step_s, n_late=late, n_steps=len(steps_s))


def needed(n_steps: int, n_ranks: int) -> int | None:
    """In how many steps a straggler must be late; None if even all are too few."""
    ways, least = 0, None  # of n_ranks**n_steps; whole numbers, because powers of so many steps fit no float
    for n in range(n_steps, 0, -1):
        ways += comb(n_steps, n) * (n_ranks - 1) ** (n_steps - n)
        if n_ranks * ways > CHANCE * n_ranks**n_steps:
            break
        least = n
    return None if least is None else max(least, ceil(USUAL * n_steps))


def fewest(n_ranks: int) -> int:
    """With how many steps a straggler can be named."""
    return next(n_steps for n_steps in count(1) if needed(n_steps, n_ranks) is not None)


def _late(excess_s: Sequence[float], step_s: float) -> int:
    return sum(excess > SHARE * step_s for excess in excess_s)


def _excess_s(rank: int, own_s: Sequence[Sequence[float]]) -> list[float]:
    """By how much the rank's work exceeds that of every other rank, in each step; negative where it does not."""
    others = [work for number, work in enumerate(own_s) if number != rank]
    return [work - max(rest) for work, *rest in zip(own_s[rank], *others, strict=True)]
